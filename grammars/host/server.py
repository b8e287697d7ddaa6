"""The process that forks a process for each grammar that llguidance compiles and follows.

It loads llguidance and the vocabulary once, and its forks share their memory. It reads no grammar itself. It
has one thread, as forking several is unsafe. It ends when the scheduler's end of the control socket closes.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from itertools import pairwise

import numpy as np

from ..processes.limits import die_with, resident
from .child import serve
from .messages import FORK, NOT_FORKED, Ended, HostVocabulary, decode_vocabulary, encode
from .native import HostCompiler

MOST_GROWTH = 1 << 30  # bytes that all its processes together may use
WATCH_MS = 500


class Server:
    def __init__(self, control: socket.socket, compiler: HostCompiler) -> None:
        self._control = control
        self._compiler = compiler
        self._numbers: dict[int, int] = {}  # process numbers, by pid
        self._first_bytes: dict[int, int] = {}  # memory at the fork, by pid
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
        self._tell(0, 0)
        watch_at = time.monotonic()
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(WATCH_MS if self._numbers else None)}
            if self._child_ended.fileno() in ready:
                with suppress(BlockingIOError):
                    self._child_ended.recv(4096)
            self._reap()
            if self._control.fileno() in ready and not self._handle_request():
                break
            if time.monotonic() >= watch_at:
                self._watch_memory()
                watch_at = time.monotonic() + WATCH_MS / 1000
        signal.set_wakeup_fd(-1)
        for pid in self._numbers:
            os.kill(pid, signal.SIGKILL)

    def _handle_request(self) -> bool:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, 64, 1)
        except ConnectionResetError:  # the scheduler ended with unread messages
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
            self._tell(number, NOT_FORKED)
            return
        if pid == 0:
            self._become_child(own_pid, channel)
        channel.close()
        self._numbers[pid] = number
        with suppress(OSError, IndexError):
            self._first_bytes[pid] = resident(pid)

    def _become_child(self, parent: int, channel: socket.socket) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with(parent)
        for inherited in (self._control, self._child_ended, self._wake):
            inherited.close()
        serve(channel, self._compiler)

    def _reap(self) -> None:
        while self._numbers:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            self._first_bytes.pop(pid, None)
            cpu_s = usage.ru_utime + usage.ru_stime
            self._tell(self._numbers.pop(pid), os.waitstatus_to_exitcode(status), cpu_s)

    def _watch_memory(self) -> None:
        """Kills the largest process if all together have grown by more than `MOST_GROWTH`."""
        grown: dict[int, int] = {}
        for pid, first in self._first_bytes.items():
            with suppress(OSError, IndexError):
                grown[pid] = resident(pid) - first
        if sum(grown.values()) > MOST_GROWTH:
            os.kill(max(grown, key=grown.__getitem__), signal.SIGKILL)

    def _tell(self, number: int, status: int, cpu_s: float = 0.0) -> None:
        with suppress(OSError):
            self._control.send(encode(Ended(number, status, cpu_s)))


def _compiler(vocabulary: HostVocabulary) -> HostCompiler:
    offsets = np.frombuffer(vocabulary.offsets, np.int32).tolist()
    data = vocabulary.data
    tokens = [data[start:end] for start, end in pairwise(offsets)]
    tokens += [b""] * (vocabulary.vocab_size - len(tokens))
    return HostCompiler(tokens, vocabulary.special, vocabulary.eos_tokens)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    compiler = _compiler(decode_vocabulary(sys.stdin.buffer.read()))
    compiler.json_schema('{"type":"object","required":["a"]}', (",", ":")).matcher()
    if len(os.listdir("/proc/self/task")) != 1:
        sys.exit("a library started a thread, which forked processes would lack")
    gc.collect()
    gc.freeze()  # a collection would write to the memory that forks share
    gc.disable()
    Server(control, compiler).run()


if __name__ == "__main__":
    main()
