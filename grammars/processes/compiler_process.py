"""The scheduler's end of a process that compiles grammars."""

from __future__ import annotations

import logging
import signal
import time
import weakref
from collections.abc import Callable
from typing import TypeAlias

from ..errors import (
    BusyError,
    CompilerError,
    GrammarError,
    ProcessEndedError,
    TooLargeError,
    bare_copy,
    decode_error,
)
from .channel import Channel, ChannelClosedError
from .fork_client import ForkServerProcess
from .limits import describe_status, measure_processor_s
from .messages import (
    KILL,
    NOT_FORKED,
    OVER_MEMORY,
    CompileJob,
    CompilesOwnCode,
    Failed,
    Finished,
    Outcome,
    Started,
    decode_progress,
    encode,
)

END_DEADLINE_S = 5.0  # seconds for the server to report how a process ended; a slower server is killed
REPORT_DEADLINE_S = 0.1  # seconds for the same report, after which the process's replies end without it
MARGIN_S = 20.0  # seconds beyond a job's limit of processor time, after which its process counts as hung
SHORT_S = 0.1  # seconds of processor time of a short job; of 877 usual schemas, four take longer
LOOK_S = 0.05  # seconds between looks at the processor time of a short job
_TOO_DEEP = "it is nested too deep"
_TOO_MUCH_MEMORY = "it takes too much memory"
_SIGNALS = {
    -signal.SIGSEGV: _TOO_DEEP,
    -signal.SIGBUS: _TOO_DEEP,
    -signal.SIGABRT: _TOO_MUCH_MEMORY,
    -signal.SIGKILL: _TOO_MUCH_MEMORY,
    OVER_MEMORY: _TOO_MUCH_MEMORY,
}
"""the limit that a grammar's process exceeded while it worked, by the signal that ended the process"""

GoOn: TypeAlias = Callable[[], bool]
"""decides whether a job that takes longer than a short one may continue"""

log = logging.getLogger(__name__)


class TakesLongError(Exception):
    """A job took longer than a short one and may not go on."""


class CompilerProcess:
    """A process that runs one job at a time. The process ends on a call of `end`, or when no reference
    to this object is left."""

    def __init__(
        self,
        server: ForkServerProcess,
        number: int,
        channel: Channel,
        release: Callable[[Channel], None],
        on_compiling: Callable[[], None] = lambda: None,
    ) -> None:
        """`release` is called once, when the process ends, and closes the channel; `on_compiling` when the
        process compiles its own code."""
        self.end = weakref.finalize(self, release, channel)
        self.end.atexit = False
        self.channel = channel
        self.number = number
        self.fault: Exception | None = None
        """why the process can't be used any more"""
        self._server = server
        self._on_compiling = on_compiling
        self._pid: int | None = None
        self._takes_jobs = True

    def takes_jobs(self) -> bool:
        """Whether the process takes another job."""
        is_usable = self._takes_jobs and self.fault is None
        return is_usable and self._server.is_alive and not self.channel.has_ended()

    def run(self, job: CompileJob, go_on: GoOn) -> Outcome:
        """Runs a job and returns its outcome.

        Raises the grammar's error, TooLargeError past a limit of states, memory or time, TakesLongError if
        the job may not go on, BusyError if there is no process, CompilerError for other failures.
        """
        fault: Exception
        try:
            self.channel.send(encode(job))
            outcome = self._wait(job, go_on)
            error = decode_error(outcome.fault) if isinstance(outcome, Failed) else None
        except TakesLongError as error:
            fault = error
        except TimeoutError:
            fault = self._stop_hung()
        except ChannelClosedError:
            fault = self._find_reason(END_DEADLINE_S, f"it takes more than {job.deadline_s:g} s")
        except ValueError:  # the process has sent garbled bytes
            fault = CompilerError("its process sent an invalid answer")
        else:
            if error is not None:
                raise error
            return outcome
        self.give_up(fault)
        raise bare_copy(fault)  # not `fault`: its traceback would keep this object alive

    def _wait(self, job: CompileJob, go_on: GoOn) -> Outcome:
        """Waits for the job's outcome. Raises TimeoutError if the process hangs, and TakesLongError."""
        ends_at = time.monotonic() + job.deadline_s + MARGIN_S
        short_until_s = self._processor_s() + min(SHORT_S, job.deadline_s)
        is_short = True
        while (left_s := ends_at - time.monotonic()) > 0:
            try:
                message = decode_progress(self.channel.receive(min(left_s, LOOK_S) if is_short else left_s))
            except TimeoutError:
                if is_short and self._processor_s() >= short_until_s:
                    is_short = False
                    if not go_on():
                        raise TakesLongError from None
                continue
            match message:
                case Started(pid):
                    self._pid = pid
                case CompilesOwnCode():
                    self._on_compiling()
                case Finished(outcome, is_last):
                    self._takes_jobs = not is_last
                    return outcome
        raise TimeoutError

    def fail(self) -> GrammarError | CompilerError:
        """Ends a process that answered too late or wrongly. Returns the error for its replies."""
        if self.fault is None:
            self.give_up(self._find_reason(0.0, "a token takes too long"))
        kind = CompilerError if isinstance(self.fault, CompilerError) else GrammarError
        return kind(f"the grammar can't be followed: {self.fault}")

    def note_idle_end(self) -> None:
        """Gives up a process that ended while it had no work. That is no fault of its grammar, unless the
        server killed the process for its memory."""
        status = self._server.find_status(self.number, REPORT_DEADLINE_S)
        if status == OVER_MEMORY:
            self.give_up(TooLargeError(_TOO_MUCH_MEMORY))
            return
        how = "its server" if status is None else describe_status(status)
        log.warning("the idle process of a grammar ended with %s; the next request gets a new process", how)
        self.give_up(CompilerError("its process ended while it was idle"))

    def has_known_end(self, within_s: float) -> bool:
        """Whether the server has reported how the process ended, or can't report it. Waits for up to
        `within_s`."""
        return self._server.find_status(self.number, within_s) is not None or not self._server.is_alive

    def give_up(self, fault: Exception) -> None:
        """Ends the process and remembers the reason."""
        self.fault = fault
        self.end()
        self._server.tell(KILL, self.number)

    def _stop_hung(self) -> CompilerError:
        """Ends a process that used little processor time. Returns the job's error, which blames the grammar
        only if the server is alive."""
        self._server.tell(KILL, self.number)
        if self._server.find_status(self.number, END_DEADLINE_S) is not None:
            return ProcessEndedError("its process gave no answer")
        self._server.kill()
        return CompilerError("the server of its process gave no answer")

    def _find_reason(self, within_s: float, out_of_time: str) -> Exception:
        """The reason that the process gave no answer. Waits up to `within_s` for the server's report, and
        kills a server that does not report."""
        status = self._server.find_status(self.number, within_s) if self.channel.is_closed else None
        match status:
            case None:
                if within_s:
                    self._server.kill()
                ended = "gave no answer" if self._server.is_alive else "ended with its server"
                return CompilerError(f"its process {ended}")
            case int() if status == -signal.SIGPROF:
                return TooLargeError(out_of_time)
            case int() if status in _SIGNALS:
                if status == -signal.SIGKILL:  # perhaps by the system, which has no memory left
                    log.warning(
                        "the process of a grammar was killed while it worked; the grammar is refused for now"
                    )
                return TooLargeError(_SIGNALS[status])
            case int() if status == NOT_FORKED:
                return BusyError("no process could be started for it")
        return ProcessEndedError(f"its process ended with {describe_status(status)}")

    def _processor_s(self) -> float:
        return 0.0 if self._pid is None else measure_processor_s(self._pid)
