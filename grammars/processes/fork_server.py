"""A process that has loaded everything its forks need, so that they share its memory.

It has one thread, because forking is unsafe otherwise. It reads no grammar. It ends when the scheduler's end
of the control socket closes.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from ...runtime.system_memory import give_back_freed_memory
from .channel import send
from .limits import die_with, measure_memory
from .messages import FORK, NOT_FORKED, OVER_MEMORY, CompilesOwnCode, ForkedProcessEnded, Started, encode

WATCH_MS = 500


def control_socket() -> socket.socket:
    """The socket to the scheduler; the program's first argument is its descriptor."""
    return socket.socket(fileno=int(sys.argv[1]))


def report_compiling(control: socket.socket) -> None:
    """Reports that this process compiles its own code. Exits if the scheduler has ended, because compiling
    can take minutes."""
    try:
        control.send(encode(CompilesOwnCode()))
    except OSError:
        sys.exit("the scheduler has ended")


def prepare_to_fork() -> None:
    """Leaves all that was loaded out of later collections. Exits if a library has started a thread."""
    if len(os.listdir("/proc/self/task")) != 1:
        sys.exit("a library started a thread, which forked processes would lack")
    gc.collect()
    give_back_freed_memory()
    gc.freeze()  # because a collection would write to the memory that forks share
    gc.disable()


class ForkServer:
    """Forks a process for each request; `serve` runs in the new process with its channel to the scheduler.

    max_growth: bytes that all processes together may use beyond the memory that they share with this one;
    None: no limit
    """

    def __init__(
        self,
        control: socket.socket,
        serve: Callable[[socket.socket], None],
        max_growth: int | None = None,
    ) -> None:
        self._control = control
        self._serve = serve
        self._max_growth = max_growth
        self._numbers: dict[int, int] = {}  # process numbers by pid
        self._first_bytes: dict[int, int] = {}  # bytes of memory at the fork, by pid
        self._over_memory: set[int] = set()  # pids of processes that were killed for their memory
        self._child_ended, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._child_ended.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)

    def run(self) -> None:
        """Runs until the scheduler closes the control socket or ends."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._child_ended, select.POLLIN)
        self._report(0, 0)
        watch_at = time.monotonic()
        while True:
            watches = self._max_growth is not None
            waits_ms = WATCH_MS if watches and self._numbers else None
            ready = {descriptor for descriptor, _ in poll.poll(waits_ms)}
            if self._child_ended.fileno() in ready:
                with suppress(BlockingIOError):
                    self._child_ended.recv(4096)
            self._reap()
            if self._control.fileno() in ready and not self._handle_request():
                break
            if watches and time.monotonic() >= watch_at:
                self._watch_memory()
                watch_at = time.monotonic() + WATCH_MS / 1000
        signal.set_wakeup_fd(-1)
        for pid in self._numbers:
            os.kill(pid, signal.SIGKILL)

    def _handle_request(self) -> bool:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, 64, 1)
        except ConnectionResetError:  # the scheduler ended without reading all messages
            return False
        if not message:
            return False
        number = int.from_bytes(message[1:], "little")
        if message[:1] == FORK:
            self._fork(number, socket.socket(fileno=descriptors[0]))
        else:
            for pid, known in self._numbers.items():
                if known == number:
                    os.kill(pid, signal.SIGKILL)
        return True

    def _fork(self, number: int, channel: socket.socket) -> None:
        own_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            channel.close()
            self._report(number, NOT_FORKED)
            return
        if pid == 0:
            self._become_child(own_pid, channel)
        channel.close()
        self._numbers[pid] = number
        with suppress(OSError, IndexError):
            self._first_bytes[pid] = measure_memory(pid)

    def _become_child(self, parent: int, channel: socket.socket) -> NoReturn:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with(parent)
        for inherited in (self._control, self._child_ended, self._wake):
            inherited.close()
        status = 1
        try:
            send(channel, encode(Started(os.getpid())))
            self._serve(channel)
            status = 0
        except (EOFError, OSError):
            status = 0  # the scheduler has closed the channel, which is no error
        finally:
            os._exit(status)

    def _reap(self) -> None:
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._first_bytes.pop(pid, None)
            was_killed = pid in self._over_memory
            self._over_memory.discard(pid)
            ended = OVER_MEMORY if was_killed else os.waitstatus_to_exitcode(status)
            self._report(self._numbers.pop(pid), ended)

    def _watch_memory(self) -> None:
        """Kills the largest process if all together have grown by more than `max_growth`."""
        grown: dict[int, int] = {}
        for pid, first in self._first_bytes.items():
            with suppress(OSError, IndexError):
                grown[pid] = measure_memory(pid) - first
        if self._max_growth is not None and sum(grown.values()) > self._max_growth:
            largest = max(grown, key=grown.__getitem__)
            self._over_memory.add(largest)
            os.kill(largest, signal.SIGKILL)

    def _report(self, number: int, status: int) -> None:
        with suppress(OSError):
            self._control.send(encode(ForkedProcessEnded(number, status)))
