"""The child processes of a server: starts them, and ends those that hang."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...runtime.processes.awake_clock import AwakeClock
from ...runtime.processes.child import SIGN_OF_LIFE_S, ChildArguments
from .child_process import ChildProcess, Command, start_child
from .watchdog import Timeouts, Watchdog, read_process

logger = logging.getLogger(__name__)


class Children:
    """All children that run. `timeouts` limits how long a child may show no sign of life, and `pass_on` gets
    the children's output."""

    def __init__(self, timeouts: Timeouts, pass_on: Callable[[str], None] | None) -> None:
        self._pass_on = pass_on
        self._watchdog = Watchdog(timeouts)
        self._awake = AwakeClock(2 * SIGN_OF_LIFE_S, time.monotonic())
        self._running: set[ChildProcess] = set()

    async def start(
        self,
        command: Command,
        directory: Path,
        epoch: int,
        number: int,
        environment: Mapping[str, str],
        descriptors: Sequence[int] = (),
    ) -> ChildProcess:
        arguments = ChildArguments(directory, epoch, number, os.getpid())
        child = await start_child(command, arguments, environment, descriptors, self._pass_on)
        self._running.add(child)
        self._watchdog.begin(child.pid, self._awake.time)
        return child

    def forget(self, child: ChildProcess) -> None:
        """Forgets a child that has ended."""
        self._running.discard(child)
        self._watchdog.forget(child.pid)

    def hear(self, pid: int, stalled_s: float) -> None:
        """Takes a child's sign of life."""
        self._watchdog.heard(pid, stalled_s, self._awake.tick(time.monotonic()))

    def find_silent(self) -> set[ChildProcess]:
        """The children that do not respond. Ends those that hang; the task that waits for a child's exit then
        starts another one."""
        now = self._awake.tick(time.monotonic())
        return {child for child in list(self._running) if not self._check(child, now)}

    async def stop_all(self, *, at_once: bool) -> None:
        """Stops every child. With `at_once`, kills them instead of asking first."""
        stops = [child.kill() if at_once else child.stop() for child in self._running]
        await asyncio.gather(*stops)

    def _check(self, child: ChildProcess, now: float) -> bool:
        """Returns whether a child responds. Ends one that hangs."""
        finding = self._watchdog.look(child.role, child.pid, read_process(child.pid), now)
        if finding.hung:
            logger.error("the %s process (pid %d) %s; ending it", child.role, child.pid, finding.hung)
            child.kill_now()
            self._watchdog.begin(child.pid, now)
        return finding.responds
