"""Starts llguidance's processes for the scheduler, and ends processes that stall."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
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
from ..processes.limits import end_in_words
from .channel import Channel, ChannelClosedError
from .messages import (
    FORK,
    KILL,
    NOT_FORKED,
    CompileJob,
    Ended,
    HostVocabulary,
    Outcome,
    decode_ended,
    decode_outcome,
    encode,
)

_START = "from arbora.grammars.host.server import main; main()"
START_DEADLINE_S = 60.0
END_DEADLINE_S = 2.0  # for the server to report how a process ended
REPORT_DEADLINE_S = 0.1  # for the same report, until the process's replies end without it
ANSWER_DEADLINE_S = 5.0  # for the server to kill a process and report its end; a slower server is killed
MARGIN_S = 3.0  # added to a deadline for the start of the process, which then enforces it itself
OWN_TIME = 0.7  # of the deadline: with less processor time the machine was too busy
MOST_PROCESSES = 192  # each takes about 4 MB, and the memory of its grammar
_KNOWN_ENDS = 4 * MOST_PROCESSES
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
        self, server: _Running, number: int, channel: Channel, release: Callable[[Channel], None]
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
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._tenants: dict[int, str] = {}  # by process number
        self._next_number = 0
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        running = self._running
        return running.process.pid if running is not None else None

    @property
    def live(self) -> int:
        """The number of processes of grammars that are in use or cached."""
        return len(self._tenants)

    def start(self) -> None:
        """Starts the server and waits until it is ready. Raises CompilerError."""
        self._started()

    def fork(self, tenant: str = "") -> GrammarProcess:
        """Forks a process. Raises CompilerError if no server can be started, and BusyError if too many
        processes exist."""
        running = self._started()
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
        channel = Channel(ours)
        made = GrammarProcess(running, number, channel, partial(self._release, number))
        with theirs:
            running.fork(number, theirs)
        return made

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            running, self._running = self._running, None
        if running is not None:
            running.close()

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

    def _started(self) -> _Running:
        with self._lock:
            if self._is_closed:
                raise CompilerError("the grammar compiler is closed")
            if self._running is None or not self._running.is_alive:
                if self._running is not None:
                    self._running.close()
                self._running = _Running(self._vocabulary)
            running = self._running
        if not running.ready.wait(START_DEADLINE_S):
            running.kill()
        if not running.is_alive:
            raise CompilerError("the process that runs llguidance could not be started")
        return running


class _Running:
    """One server process."""

    def __init__(self, vocabulary: HostVocabulary) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env=environment,
            )
        self.ready = threading.Event()
        self.is_alive = True
        self._ends: OrderedDict[int, Ended] = OrderedDict()
        self._changed = threading.Condition()
        threading.Thread(
            target=self._talk, args=(vocabulary,), name="host-grammars-ends", daemon=True
        ).start()

    def fork(self, number: int, channel: socket.socket) -> None:
        """Asks the server to fork. If that fails, closes the channel's other end."""
        descriptor = array("i", [channel.fileno()])
        self._send(FORK, number, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor)])

    def tell(self, what: bytes, number: int) -> None:
        self._send(what, number, [])

    def kill(self) -> None:
        """Kills a server that does not answer; the next grammar gets a new one."""
        self.is_alive = False
        self.process.kill()

    def _send(self, what: bytes, number: int, attached: list[tuple[int, int, array[int]]]) -> None:
        """Sends without waiting; kills a server whose socket is full."""
        try:
            message = what + number.to_bytes(8, "little")
            self._control.sendmsg([message], attached, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self.kill()
        except OSError:
            return  # the server has ended

    def end_of(self, number: int, within_s: float) -> Ended | None:
        """How a process ended, or None if it is still running."""
        deadline = time.monotonic() + within_s
        with self._changed:
            while number not in self._ends and self.is_alive:
                if not self._changed.wait(deadline - time.monotonic()):
                    return None
            return self._ends.get(number)

    def close(self) -> None:
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _talk(self, vocabulary: HostVocabulary) -> None:
        """Sends the vocabulary, then reads the server's reports until it ends."""
        assert self.process.stdin is not None
        with suppress(OSError), self.process.stdin:
            self.process.stdin.write(encode(vocabulary))
        with suppress(OSError):
            while message := self._control.recv(256):
                ended = decode_ended(message)
                with self._changed:
                    self._ends[ended.process] = ended
                    if len(self._ends) > _KNOWN_ENDS:
                        self._ends.popitem(last=False)
                    self._changed.notify_all()
                if ended.process == 0:
                    self.ready.set()
        with self._changed:
            self.is_alive = False
            self._changed.notify_all()
        self.ready.set()
        self._control.close()
        self.process.wait()


def _timeout(deadline_s: float, end: Ended | None) -> TimeoutError:
    """The error of a timeout. It blames the grammar only if its process was running for most of the time."""
    is_slow = end is not None and end.cpu_s >= OWN_TIME * deadline_s
    return (TooSlowError if is_slow else TimeoutError)(f"it takes more than {deadline_s:g} s")
