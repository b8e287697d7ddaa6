"""The process that forks the processes that build automata. Its forks share what it has loaded.

A fork builds one grammar after another and caches the automata that they share. A timer without a handler
ends it if a job takes too much processor time, even inside native code, and its memory is limited. Only hung
jobs are ended by real time, so a busy machine builds the same automata.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from numba.core.event import Event, Listener, register

from ...runtime.compiled_code import CompiledNote
from ..errors import TooLargeError, encode_error
from ..jit import FOLDER
from ..masks.token_trie import build_tries
from ..processes.channel import receive, send
from ..processes.fork_server import ForkServer, control_socket, prepare_to_fork, report_compiling
from ..processes.limits import keep_to_limits, measure_memory, run_limited
from ..processes.messages import AutomatonReady, CompilesOwnCode, Failed, Finished, decode_job, encode
from .builder import AutomatonBuilder

EXTRA_BYTES = 1536 << 20  # bytes of address space for building, in addition to the loaded code and data
COMPILING_NICENESS = 5
"""gives compiling a quarter of a busy core, so that it ends before `BUILDER_START_S` (compiler.py)"""
KEEP_BELOW = 384 << 20
"""bytes; a process that has grown by more ends with its job"""


class BeforeCompiling(Listener):
    """Calls `tell` before each function of its own that this process compiles."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self.tell = tell

    def on_start(self, event: Event) -> None:
        self.tell()

    def on_end(self, event: Event) -> None:
        """Does nothing; numba requires it."""


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = control_socket()
    notice = BeforeCompiling(partial(report_compiling, control))
    register("numba:compile", notice)
    spellings, special = pickle.loads(sys.stdin.buffer.read())
    note = CompiledNote(FOLDER)
    builder = AutomatonBuilder(build_tries(spellings), special)
    warm_up(builder, notice)
    note.write()
    prepare_to_fork()
    ForkServer(control, partial(_serve, builder, notice)).run()


def warm_up(builder: AutomatonBuilder, notice: BeforeCompiling) -> None:
    """Warms the builder up in a thread, which gets a low priority when it begins to compile code: compiling
    takes minutes and must not slow running requests. On Linux each thread has a priority of its own, so the
    processes that the main thread forks later have the normal one."""
    tell = notice.tell

    def lower_priority_and_tell() -> None:
        niceness = os.getpriority(os.PRIO_PROCESS, 0)  # niceness of this thread
        os.setpriority(os.PRIO_PROCESS, 0, max(niceness, COMPILING_NICENESS))
        tell()

    def run() -> int:
        builder.warm_up()
        return threading.get_native_id()

    notice.tell = lower_priority_and_tell
    with ThreadPoolExecutor(1) as executor:
        thread = executor.submit(run).result()
    while Path(f"/proc/self/task/{thread}").exists():  # the system ends the thread a moment after the join
        time.sleep(0.001)


def _serve(builder: AutomatonBuilder, notice: BeforeCompiling, channel: socket.socket) -> None:
    """Runs jobs in a newly forked process until the scheduler closes the channel, or until the process has
    grown too large."""
    first = measure_memory()
    notice.tell = partial(send, channel, encode(CompilesOwnCode()))
    keep_to_limits(EXTRA_BYTES)
    is_last = False
    while not is_last:
        job = decode_job(receive(channel))
        outcome = run_limited(job.deadline_s, lambda: AutomatonReady(builder.build(job.key, job.spec)))  # noqa: B023
        is_last = measure_memory() - first > KEEP_BELOW
        try:
            message = encode(Finished(outcome, is_last))
        except MemoryError:
            message = encode(
                Finished(Failed(encode_error(TooLargeError("it takes too much memory"))), is_last)
            )
        send(channel, message)
        gc.collect()


if __name__ == "__main__":
    main()
