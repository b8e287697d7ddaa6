"""The scheduler's end of a fork server: starts it, asks it for processes, and learns how they ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from ..errors import CompilerError
from .limits import describe_status
from .messages import FORK, CompilesOwnCode, ForkedProcessEnded, decode_report

END_DEADLINE_S = 2.0  # seconds for the server to end
MAX_KNOWN_ENDS = 1024


class RestartingForkServer:
    """Starts a fork server when it is needed, and again if it died. Thread-safe.

    does: what the server does, as errors say after "the process that"
    start_deadline_s: seconds until the server must be ready
    program, first, on_compiling: see `ForkServerProcess`
    """

    def __init__(
        self,
        does: str,
        start_deadline_s: float,
        program: str,
        first: bytes,
        on_compiling: Callable[[], None] = lambda: None,
    ) -> None:
        self._does = does
        self._start_deadline_s = start_deadline_s
        self.on_compiling = on_compiling
        self._start: Callable[[], ForkServerProcess] = lambda: ForkServerProcess(program, first, on_compiling)
        self._lock = threading.Lock()
        self._running: ForkServerProcess | None = None
        self._is_closed = False

    def wait_ready(self) -> ForkServerProcess:
        """The server, once it is ready. Raises CompilerError."""
        with self._lock:
            if self._is_closed:
                raise CompilerError("the grammar compiler is closed")
            if self._running is None or not self._running.is_alive:
                if self._running is not None:
                    self._running.close()
                try:
                    self._running = self._start()
                except OSError as error:  # no file descriptor or no memory is left
                    raise self._not_started(error) from error
            running = self._running
        if not running.ready.wait(self._start_deadline_s):
            running.kill()
        if not running.is_alive:
            raise self._not_started(running.describe_end())
        return running

    def _not_started(self, reason: object) -> CompilerError:
        return CompilerError(f"the process that {self._does} could not be started: {reason}")

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            running, self._running = self._running, None
        if running is not None:
            running.close()


class ForkServerProcess:
    """One server process.

    program: Python code of the process
    first: what the process reads from its standard input before it is ready
    on_compiling: called from another thread when the process compiles its own code
    """

    def __init__(self, program: str, first: bytes, on_compiling: Callable[[], None]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env=environment,
            )
        self.ready = threading.Event()
        self.is_alive = True
        self._on_compiling = on_compiling
        self._statuses: OrderedDict[int, int] = OrderedDict()
        self._changed = threading.Condition()
        threading.Thread(
            target=self._exchange, args=(first,), name="fork-server-reports", daemon=True
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

    def find_status(self, number: int, within_s: float) -> int | None:
        """The status with which a process ended, or None if it is still running. Waits for up to
        `within_s`."""
        deadline = time.monotonic() + within_s
        with self._changed:
            while number not in self._statuses and self.is_alive:
                if not self._changed.wait(deadline - time.monotonic()):
                    return None
            return self._statuses.get(number)

    def describe_end(self) -> str:
        """How the server itself ended, in words."""
        with suppress(subprocess.TimeoutExpired):
            return f"it ended with {describe_status(self.process.wait(END_DEADLINE_S))}"
        return "it does not end"

    def close(self) -> None:
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        try:
            self.process.wait(END_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _send(self, what: bytes, number: int, attached: list[tuple[int, int, array[int]]]) -> None:
        """Sends without waiting; kills a server whose socket is full."""
        try:
            message = what + number.to_bytes(8, "little")
            self._control.sendmsg([message], attached, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self.kill()
        except OSError:
            return  # the server has ended

    def _exchange(self, first: bytes) -> None:
        """Sends `first`, then reads the server's reports until it ends."""
        assert self.process.stdin is not None
        with suppress(OSError), self.process.stdin:
            self.process.stdin.write(first)
        with suppress(OSError):
            while message := self._control.recv(256):
                self._note(decode_report(message))
        with self._changed:
            self.is_alive = False
            self._changed.notify_all()
        self.ready.set()
        self._control.close()
        self.process.wait()

    def _note(self, report: ForkedProcessEnded | CompilesOwnCode) -> None:
        if isinstance(report, CompilesOwnCode):
            self._on_compiling()
            return
        with self._changed:
            self._statuses[report.process] = report.status
            if len(self._statuses) > MAX_KNOWN_ENDS:
                self._statuses.popitem(last=False)
            self._changed.notify_all()
        if report.process == 0:
            self.ready.set()
