"""Starts llguidance's processes for the scheduler, and ends processes that stall."""

from __future__ import annotations

import signal
import socket
import threading
import weakref
from collections.abc import Callable
from functools import partial

from ..errors import (
    BusyError,
    CompilerError,
    GrammarError,
    ProcessEndedError,
    TooLargeError,
    TooSlowError,
    bare_copy,
)
from ..processes.channel import Channel, ChannelClosedError
from ..processes.fork_client import KeptServer, RunningServer
from ..processes.fork_messages import KILL, NOT_FORKED, Ended
from ..processes.limits import end_in_words
from .messages import MAX_ANSWER, CompileJob, HostVocabulary, Outcome, decode_outcome, encode

_START = "from arbora.grammars.host.server import main; main()"
START_DEADLINE_S = 60.0
END_DEADLINE_S = 2.0  # for the server to report how a process ended
REPORT_DEADLINE_S = 0.1  # for the same report, until the process's replies end without it
ANSWER_DEADLINE_S = 5.0  # for the server to kill a process and report its end; a slower server is killed
MARGIN_S = 3.0  # added to a deadline for the start of the process, which then enforces it itself
OWN_TIME = 0.7  # of the deadline: with less processor time the machine was too busy
MOST_PROCESSES = 192  # each takes about 4 MB, and the memory of its grammar
_LARGE_SIGNALS = {
    -signal.SIGSEGV: "it is nested too deep",
    -signal.SIGBUS: "it is nested too deep",
    -signal.SIGABRT: "it takes too much memory",
    -signal.SIGKILL: "it takes too much memory",
    -signal.SIGPROF: "a token takes too long",
}
"""The reason that each signal gives for the end of a grammar's process."""


class GrammarProcess:
    """The process of one grammar. It ends on a call of `end`, or when no reference to this object is left."""

    def __init__(
        self, server: RunningServer, number: int, channel: Channel, release: Callable[[Channel], None]
    ) -> None:
        """`release` is called once, when the process ends."""
        self.end = weakref.finalize(self, release, channel)
        self.end.atexit = False
        self.channel = channel
        self.number = number
        self._server = server
        self.fault: Exception | None = None
        """Why the process can't be used any more."""

    def compile(self, job: CompileJob) -> Outcome:
        """Sends the job and returns its outcome. Raises TooLargeError or TimeoutError if the grammar needs
        too much memory or time, and CompilerError for other failures."""
        try:
            self.channel.send(encode(job))
            outcome: Outcome = decode_outcome(self.channel.receive(job.deadline_s + MARGIN_S))
            return outcome
        except TimeoutError:
            fault = self._timed_out(job.deadline_s)
        except (ChannelClosedError, ValueError):
            fault = self._reason(job.deadline_s, END_DEADLINE_S)
        self.give_up(fault)
        raise bare_copy(fault)  # not `fault`: its traceback would keep this object alive

    def _timed_out(self, deadline_s: float) -> Exception:
        """Returns the error of a process that missed its deadline. If the server does not answer either,
        kills the server; then the error does not blame the grammar."""
        self._server.tell(KILL, self.number)
        end = self._server.end_of(self.number, ANSWER_DEADLINE_S)
        if end is not None:
            return _timeout(deadline_s, end)
        self._server.kill()
        return CompilerError("the process that runs llguidance gave no answer")

    def fail(self, deadline_s: float) -> GrammarError | CompilerError:
        """Ends a process that answered too late or wrongly. Returns the error for its replies."""
        if self.fault is None:
            self.give_up(self._reason(deadline_s, 0.0))
        kind = CompilerError if isinstance(self.fault, CompilerError) else GrammarError
        return kind(f"the grammar can't be followed: {self.fault}")

    def has_known_end(self, within_s: float) -> bool:
        """Whether the server has reported how the process ended, or can't report it. Waits for up to
        `within_s`."""
        return self._server.end_of(self.number, within_s) is not None or not self._server.is_alive

    def give_up(self, fault: Exception) -> None:
        """Ends the process and remembers the reason."""
        self.fault = fault
        self.channel.close()
        self._server.tell(KILL, self.number)

    def _reason(self, deadline_s: float, within_s: float) -> Exception:
        """Why the process gave no answer. Waits up to `within_s` for the server's report."""
        end = self._server.end_of(self.number, within_s) if self.channel.is_closed else None
        status = None if end is None else end.status
        match status:
            case None if not self._server.is_alive:
                return CompilerError("the process that runs llguidance ended")
            case None:
                return CompilerError("its process gave no answer")
            case int() if status == -signal.SIGALRM:
                return _timeout(deadline_s, end)
            case int() if status in _LARGE_SIGNALS:
                return TooLargeError(_LARGE_SIGNALS[status])
            case int() if status == NOT_FORKED:
                return BusyError("no process could be started for it")
        return ProcessEndedError(f"its process ended with {end_in_words(status)}")


class HostServer:
    """Starts the server when it is needed, and again if it died. Thread-safe."""

    def __init__(self, vocabulary: HostVocabulary) -> None:
        self._kept = KeptServer(
            "runs llguidance", START_DEADLINE_S, lambda: RunningServer(_START, encode(vocabulary))
        )
        self._lock = threading.Lock()
        self._tenants: dict[int, str] = {}  # by process number
        self._next_number = 0

    @property
    def pid(self) -> int | None:
        return self._kept.pid

    @property
    def live(self) -> int:
        """The number of processes of grammars that are in use or cached."""
        return len(self._tenants)

    def fork(self, tenant: str = "") -> GrammarProcess:
        """Forks a process. Raises CompilerError if no server can be started, and BusyError if too many
        processes exist."""
        running = self._kept.started()
        ours, theirs = socket.socketpair()
        with self._lock:
            busy = self._busy(tenant)
            if busy:
                ours.close()
                theirs.close()
                raise BusyError(busy)
            self._next_number += 1
            number = self._next_number
            self._tenants[number] = tenant
        channel = Channel(ours, MAX_ANSWER)
        made = GrammarProcess(running, number, channel, partial(self._release, number))
        with theirs:
            running.fork(number, theirs)
        return made

    def close(self) -> None:
        self._kept.close()

    def _busy(self, tenant: str) -> str | None:
        """Why the tenant can't get another process now, or None. A tenant may have at most as many processes
        as are still available."""
        free = MOST_PROCESSES - self.live
        if free <= 0:
            return f"the server follows {MOST_PROCESSES} grammars already; try again later"
        held = list(self._tenants.values()).count(tenant)
        if held >= free:
            return f"the server follows {held} grammars of yours already; try again later"
        return None

    def _release(self, number: int, channel: Channel) -> None:
        """Closes the channel, which ends the process."""
        channel.close()
        self._tenants.pop(number, None)  # atomic: this may run while the lock is held


def _timeout(deadline_s: float, end: Ended | None) -> TimeoutError:
    """The error of a timeout. It blames the grammar only if its process was running for most of the time."""
    is_slow = end is not None and end.cpu_s >= OWN_TIME * deadline_s
    return (TooSlowError if is_slow else TimeoutError)(f"it takes more than {deadline_s:g} s")
