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
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NoReturn

from numba.core.event import Event, Listener, register

from ...runtime.compiled_code import CompiledNote
from ..errors import CompilerError, GrammarError, TooLargeError
from ..masks.token_trie import build_tries
from ..processes.fork_server import ForkServer, control_socket, prepare_to_fork, tell_compiling
from ..processes.framing import receive, send
from ..processes.limits import keep_to_limits, resident
from .builder import Builder
from .jobs import LAST_RESULT, NOTICE, PROCESS, RESULT, Result, Work
from .sources import FOLDER

EXTRA_BYTES = 1536 << 20  # of address space for building, in addition to the loaded code and data
COMPILING_NICENESS = 5
"""gives compiling a quarter of a busy core, so that it ends before `START_DEADLINE_S` (worker.py)"""
KEEP_BELOW = 384 << 20
"""Bytes of memory; a process that has grown by more ends with its job."""


class BeforeCompiling(Listener):  # type: ignore[misc]
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
    notice = BeforeCompiling(partial(tell_compiling, control))
    register("numba:compile", notice)
    spellings, special = pickle.loads(sys.stdin.buffer.read())
    note = CompiledNote(FOLDER)
    builder = Builder(build_tries(spellings), special)
    warm_up(builder, notice)
    note.write()
    prepare_to_fork()
    ForkServer(control, partial(_serve, builder, notice)).run()


def warm_up(builder: Builder, notice: BeforeCompiling) -> None:
    """Warms the builder up in a thread, which gets a low priority when it begins to compile code: compiling
    takes minutes and must not slow running requests. On Linux each thread has a priority of its own, so the
    processes that the main thread forks later have the normal one."""
    tell = notice.tell

    def lower_priority_and_tell() -> None:
        niceness = os.getpriority(os.PRIO_PROCESS, 0)  # of this thread
        os.setpriority(os.PRIO_PROCESS, 0, max(niceness, COMPILING_NICENESS))
        tell()

    def run() -> int:
        builder.warm_up()
        return threading.get_native_id()

    notice.tell = lower_priority_and_tell
    with ThreadPoolExecutor(1) as executor:
        thread = executor.submit(run).result()
    while Path(f"/proc/self/task/{thread}").exists():  # the system ends it a moment after the join
        time.sleep(0.001)


def _serve(builder: Builder, notice: BeforeCompiling, channel: socket.socket) -> NoReturn:
    """Runs in a newly forked process, and ends that process."""
    first = resident()
    notice.tell = partial(send, channel, NOTICE)
    keep_to_limits(EXTRA_BYTES)
    try:
        send(channel, PROCESS + pickle.dumps(os.getpid()))
        while True:
            work: Work = pickle.loads(receive(channel))
            answer = _pickled(_answer(work, builder))
            is_last = resident() - first > KEEP_BELOW
            send(channel, (LAST_RESULT if is_last else RESULT) + answer)
            if is_last:
                os._exit(0)
            gc.collect()
    except (EOFError, OSError):
        os._exit(0)  # the scheduler has closed the channel
    finally:
        os._exit(1)


def _pickled(answer: Result | Exception) -> bytes:
    """The answer, or an error if its copy does not fit into the process's memory."""
    try:
        return pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL)
    except MemoryError:
        return pickle.dumps(TooLargeError("it took too much memory"))


def _answer(work: Work, builder: Builder) -> Result | Exception:
    signal.setitimer(signal.ITIMER_PROF, work.deadline_s)
    try:
        return builder.build(work.key, work.spec)
    except (GrammarError, TooLargeError) as error:
        return error
    except MemoryError:
        return TooLargeError("it took too much memory")
    except RecursionError:
        return TooLargeError("it is nested too deep")
    except Exception:  # a fault of ours; llguidance may succeed
        return CompilerError(traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()
