"""Distinguishes hung children from working ones by their signs of life. A stopped process is silent and uses
no processor time. A process whose main loop is stuck still reports that it makes no progress; one that holds
Python's interpreter lock can't report, but uses processor time. Decides also when to start a dead child
again.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

_STOPPED = frozenset("Tt")
_STATE, _USER_TICKS, _SYSTEM_TICKS = 0, 11, 12  # fields of /proc/PID/stat, after the program's name


class Timeouts(NamedTuple):
    """How long a child may fail to show life, in seconds.

    `silent_s`: without a report or processor time. `stalled_s`: without progress of its main loop, by role.
    `/health` reports a replica that is silent for `unresponsive_s`, or stalled for `STALLED_SHARE` of its
    bound.
    """

    unresponsive_s: float = 3.0
    silent_s: float = 10.0
    stalled_s: Mapping[str, float] = MappingProxyType({"model": 120.0, "scheduler": 30.0, "tokenizer": 10.0})


TIMEOUTS = Timeouts()
STALLED_SHARE = 0.25


class Reading(NamedTuple):
    """The system's view of a process: whether it is stopped, and its processor time in clock ticks."""

    stopped: bool
    ticks: int


@dataclass
class _Signs:
    """When a child last showed life, and how. `reported_at` is None before its first report."""

    life_at: float
    reported_at: float | None = None
    stalled_s: float = 0.0
    ticks: int = -1


class Finding(NamedTuple):
    """The state of a child. `hung` is the reason to end it, in words after "the model process", or empty."""

    responds: bool
    hung: str = ""


class Watchdog:
    """Tracks the signs of life of the children by process id. Times come from an `AwakeClock`."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._signs: dict[int, _Signs] = {}

    def begin(self, pid: int, now: float) -> None:
        """Starts a child's timeouts after it was started (to show life) or killed (to end)."""
        self._signs[pid] = _Signs(now)

    def heard(self, pid: int, stalled_s: float, now: float) -> None:
        """Records a child's report. Reports of ended children are ignored."""
        if signs := self._signs.get(pid):
            signs.life_at = signs.reported_at = now
            signs.stalled_s = stalled_s

    def look(self, role: str, pid: int, reading: Reading | None, now: float) -> Finding:
        """Judges a child by its reports and its processor time. `reading` is None on a system without
        /proc; then only the reports count."""
        signs = self._signs[pid]
        if self._shows_life(signs, reading):
            signs.life_at = now
        if reading is not None:
            signs.ticks = reading.ticks
        silent_s = now - signs.life_at
        stalled_s = 0.0 if signs.reported_at is None else signs.stalled_s + now - signs.reported_at
        most_stalled_s = self._timeouts.stalled_s[role]
        if silent_s > self._timeouts.silent_s:
            return Finding(False, f"has given no sign of life for {silent_s:.0f} s")
        if stalled_s > most_stalled_s:
            return Finding(False, f"has made no progress for {stalled_s:.0f} s")
        responds = silent_s <= self._timeouts.unresponsive_s and stalled_s <= STALLED_SHARE * most_stalled_s
        return Finding(responds)

    def forget(self, pid: int) -> None:
        self._signs.pop(pid, None)

    def _shows_life(self, signs: _Signs, reading: Reading | None) -> bool:
        """Whether a child shows life. Before its first report it may wait without using processor time."""
        if signs.reported_at is None:
            return reading is None or not reading.stopped
        return reading is not None and reading.ticks > signs.ticks


def read_process(pid: int, proc: Path = Path("/proc")) -> Reading | None:
    try:
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    if len(fields) <= _SYSTEM_TICKS:  # incomplete, because the process is ending
        return None
    return Reading(fields[_STATE] in _STOPPED, int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS]))


MAX_FAILURES = 5
WINDOW_SECONDS = 60.0
SETTLED_SECONDS = 5.0
FIRST_DELAY_SECONDS = 0.25
_FROM_OUTSIDE = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, -signal.SIGQUIT}


class Restarts:
    """The restart policy of one failure domain.

    A death counts as a failure if it came before the child was ready, or within `SETTLED_SECONDS` after by a
    crash of the child itself, not by a signal from outside. Any other death clears the record, and the child
    starts again at once. After failures the delay grows; the fifth within `WINDOW_SECONDS` ends the server.
    """

    def __init__(self) -> None:
        self._failures: list[float] = []

    def delay_after(self, now: float, ready_at: float | None, returncode: int) -> float | None:
        """Seconds until the next start, None to give up. `ready_at` is None if the child was never ready."""
        if ready_at is not None and (now - ready_at >= SETTLED_SECONDS or returncode in _FROM_OUTSIDE):
            self._failures.clear()
            return 0.0
        self._failures = [time for time in self._failures if now - time < WINDOW_SECONDS]
        self._failures.append(now)
        if len(self._failures) >= MAX_FAILURES:
            return None
        return FIRST_DELAY_SECONDS * float(2 ** (len(self._failures) - 1))
