"""Relays jobs from the scheduler to the process that builds automata, and its complete results back."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from contextlib import suppress
from typing import IO

from ..processes.framing import read_frame, write_frame
from ..processes.limits import die_with

MARGIN_S = 20.0  # of real time, beyond a job's limit of processor time; then its process counts as hung

NOTICE, RESULT, LAST_RESULT, END = b"N", b"R", b"L", b"E"
"""The first byte of a frame: a notice that the process compiles its own code, a job's result, a result
after which the process ends, or the status with which it ended."""


class Relay:
    """Runs in a process with one thread. It reads no grammar, so no grammar can end it."""

    def __init__(self) -> None:
        self._child = 0
        self._jobs: IO[bytes] | None = None
        self._results: IO[bytes] | None = None
        signal.signal(signal.SIGALRM, lambda *_: self._kill())

    def has_child(self) -> bool:
        """Whether there is a child. First forgets a child that ended between jobs."""
        if self._child and os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            self.end_child()
        return self._child != 0

    def next_job(self) -> bytes | None:
        """The next job; None when the scheduler has closed the pipe or ended."""
        try:
            return read_frame(sys.stdin.buffer)
        except EOFError:
            return None

    def fork(self) -> tuple[IO[bytes], IO[bytes]] | None:
        """Forks. Returns the pipes for jobs and results in the new process, and None in this one."""
        own_pid = os.getpid()
        jobs_in, jobs_out = os.pipe()
        results_in, results_out = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            die_with(own_pid)
            os.close(jobs_out)
            os.close(results_in)
            return os.fdopen(jobs_in, "rb"), os.fdopen(results_out, "wb")
        os.close(jobs_in)
        os.close(results_out)
        self._jobs, self._results = os.fdopen(jobs_out, "wb"), os.fdopen(results_in, "rb")
        return None

    def do(self, job: bytes) -> None:
        """Relays a job, and its result or the status with which the child ended."""
        assert self._jobs is not None and self._results is not None
        deadline_s: float = pickle.loads(job).deadline_s
        signal.setitimer(signal.ITIMER_REAL, deadline_s + MARGIN_S)
        try:
            write_frame(self._jobs, job)
            while (said := read_frame(self._results))[:1] == NOTICE:
                write_frame(sys.stdout.buffer, said)
            write_frame(sys.stdout.buffer, RESULT + said[1:])
            if said[:1] == LAST_RESULT:
                self.end_child()
        except (EOFError, BrokenPipeError):
            write_frame(sys.stdout.buffer, END + pickle.dumps(self.end_child()))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def end_child(self) -> int:
        """Ends the child. Returns its status if it had ended already, or 0."""
        status = 0
        if self._child:
            for pipe in (self._jobs, self._results):
                with suppress(OSError):
                    if pipe is not None:
                        pipe.close()
            _, code = os.waitpid(self._child, 0)
            status = os.waitstatus_to_exitcode(code)
            self._child = 0
        return status

    def _kill(self) -> None:
        if self._child:
            os.kill(self._child, signal.SIGKILL)
