"""The scheduler's end of llguidance's processes: it starts them, and ends those that stall."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from .errors import BusyError, CompilerError, ProcessEndedError, TooLargeError, bare_copy
from .host_channel import Channel, ChannelClosedError
from .host_messages import (
    FORK,
    KILL,
    NOT_FORKED,
    CompileJob,
    HostVocabulary,
    Outcome,
    decode_ended,
    decode_outcome,
    encode,
)
from .process_limits import end_in_words

_START = "from arbora.grammars.host_server import main; main()"
START_DEADLINE_S = 60.0
END_DEADLINE_S = 2.0  # until the server tells how a process ended
MARGIN_S = 3.0  # for a process to begin, beyond its deadline, which it keeps itself unless it is stopped
MOST_PROCESSES = 192  # each takes about 4 MB, and what its grammar needs
_KNOWN_ENDS = 4 * MOST_PROCESSES
_LARGE_SIGNALS = {
    -signal.SIGSEGV: "it is nested too deep",
    -signal.SIGBUS: "it is nested too deep",
    -signal.SIGABRT: "it takes too much memory",
    -signal.SIGKILL: "it takes too much memory",
    -signal.SIGPROF: "a token takes too long",
}
"""what it says of a grammar when its process ends by a signal"""


class GrammarProcess:
    """One grammar's process, and the channel to it. It ends with `end`, or when nothing refers to this."""

    def __init__(
        self, server: _Running, number: int, channel: Channel, release: Callable[[Channel], None]
    ) -> None:
        """`release` is called once, when the process ends for one of the two reasons."""
        self.end = weakref.finalize(self, release, channel)
        self.end.atexit = False
        self.channel = channel
        self.number = number
        self._server = server
        self.fault: Exception | None = None
        """why it can't be used any more"""

    def compile(self, job: CompileJob) -> Outcome:
        """Raises TooLargeError or TimeoutError for what the grammar takes, else CompilerError."""
        try:
            self.channel.send(encode(job))
            outcome: Outcome = decode_outcome(self.channel.receive(job.deadline_s + MARGIN_S))
            return outcome
        except TimeoutError:
            fault: Exception = TimeoutError(_too_long(job.deadline_s))
        except (ChannelClosedError, ValueError):
            fault = self._reason(job.deadline_s)
        self._failed(fault)
        raise bare_copy(fault)  # what is raised keeps the frame, and so this; what is kept must not

    def fail(self, deadline_s: float) -> str:
        """Ends it, as it gave no answer in time, or none that can be read. Returns what to tell its users."""
        if self.fault is None:
            self._failed(self._reason(deadline_s))
        return f"the grammar can't be followed: {self.fault}"

    def _failed(self, fault: Exception) -> None:
        self.fault = fault
        self.channel.close()
        self._server.tell(KILL, self.number)

    def _reason(self, deadline_s: float) -> Exception:
        status = None
        if self.channel.is_closed:
            status = self._server.end_of(self.number)
        match status:
            case None if not self._server.is_alive:
                return CompilerError("the process that runs llguidance ended")
            case None:
                return TooLargeError("its process gave no answer")
            case int() if status == -signal.SIGALRM:
                return TimeoutError(_too_long(deadline_s))
            case int() if status in _LARGE_SIGNALS:
                return TooLargeError(_LARGE_SIGNALS[status])
            case int() if status == NOT_FORKED:
                return BusyError("no process could be started for it")
        return ProcessEndedError(f"its process ended with {end_in_words(status)}")


class HostServer:
    """Starts the server when it is needed, and again after it died. For use by several threads."""

    def __init__(self, vocabulary: HostVocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._live = 0
        self._next_number = 0
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        running = self._running
        return running.process.pid if running is not None else None

    @property
    def live(self) -> int:
        """Processes of grammars in use or remembered."""
        return self._live

    def start(self) -> None:
        """Returns when it is ready. Raises CompilerError."""
        self._started()

    def fork(self) -> GrammarProcess:
        """Raises CompilerError without a server, BusyError at the limit of processes."""
        running = self._started()
        ours, theirs = socket.socketpair()
        with self._lock:
            if self._live >= MOST_PROCESSES:
                ours.close()
                theirs.close()
                raise BusyError(f"the server follows {MOST_PROCESSES} grammars already; try again later")
            self._live += 1
            self._next_number += 1
            number = self._next_number
        channel = Channel(ours)
        made = GrammarProcess(running, number, channel, self._release)
        with theirs:
            running.fork(number, theirs)
        return made

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            running, self._running = self._running, None
        if running is not None:
            running.close()

    def _release(self, channel: Channel) -> None:
        """The process ends when its channel is closed."""
        channel.close()
        self._live -= 1  # single steps of the interpreter: finalizers may run while the lock is held

    def _started(self) -> _Running:
        with self._lock:
            if self._is_closed:
                raise CompilerError("the grammar compiler is closed")
            if self._running is None or not self._running.is_alive:
                if self._running is not None:
                    self._running.close()
                self._running = _Running(self._vocabulary)
            running = self._running
        if not running.ready.wait(START_DEADLINE_S) or not running.is_alive:
            raise CompilerError("the process that runs llguidance could not be started")
        return running


class _Running:
    """One life of the server."""

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
        self._ends: OrderedDict[int, int] = OrderedDict()
        self._changed = threading.Condition()
        threading.Thread(
            target=self._talk, args=(vocabulary,), name="host-grammars-ends", daemon=True
        ).start()

    def fork(self, number: int, channel: socket.socket) -> None:
        with suppress(OSError):  # the channel's end tells of it
            socket.send_fds(self._control, [FORK + number.to_bytes(8, "little")], [channel.fileno()])

    def tell(self, what: bytes, number: int) -> None:
        with suppress(OSError):
            self._control.send(what + number.to_bytes(8, "little"))

    def end_of(self, number: int) -> int | None:
        """How a process ended, if it did."""
        deadline = time.monotonic() + END_DEADLINE_S
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
        """Sends the vocabulary, then takes in what the server tells, until it ends."""
        assert self.process.stdin is not None
        with suppress(OSError), self.process.stdin:
            self.process.stdin.write(encode(vocabulary))
        with suppress(OSError):
            while message := self._control.recv(256):
                ended = decode_ended(message)
                with self._changed:
                    self._ends[ended.process] = ended.status
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


def _too_long(deadline_s: float) -> str:
    return f"it takes more than {deadline_s:g} s"
