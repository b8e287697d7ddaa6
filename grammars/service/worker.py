"""The scheduler's end of the processes that build automata.

A hostile grammar ends one of them and delays only its own request. The next job gets a new process within
milliseconds.
"""

from __future__ import annotations

import logging
import pickle
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from threading import Condition

from ...runtime.compiled_code import CompiledNote
from ..errors import CompilerError, ProcessEndedError, TooLargeError
from ..masks.spellings import Spellings
from ..processes.channel import Channel, ChannelClosedError
from ..processes.fork_client import KeptServer, RunningServer
from ..processes.fork_messages import KILL, NOT_FORKED
from ..processes.limits import end_in_words, processor_s
from ..tags.special_tokens import SpecialTokens
from .answers import MAX_ANSWER, read_answer
from .automaton import Automaton
from .jobs import LAST_RESULT, NOTICE, PROCESS, Job, Result
from .lanes import TakesLongError
from .sources import FOLDER
from .spending import Spending

_START = "from arbora.grammars.service.builder_process import main; main()"
START_DEADLINE_S = 1200.0  # at its first start the server compiles its own code
END_DEADLINE_S = 5.0  # for the server to report how a process ended
MARGIN_S = 20.0  # of real time, beyond a job's limit of processor time; then its process counts as hung
SHORT_S = 0.1  # of processor time; of 877 usual schemas, four take longer
LOOK_S = 0.05  # between looks at the processor time of a short job

log = logging.getLogger(__name__)


class AutomatonWorkers:
    """Up to `size` processes, forked by one server when they are needed. Thread-safe.

    Jobs of tenants with much recent compiling wait while any other job waits. The caller keeps the number of
    long jobs below `size`, so that short jobs never wait for long.
    """

    def __init__(
        self, spellings: Spellings, special: SpecialTokens, size: int, spending: Spending | None = None
    ) -> None:
        self._spending = spending or Spending()
        first = pickle.dumps((spellings, special), protocol=pickle.HIGHEST_PROTOCOL)
        self.server = KeptServer(
            "builds automata", START_DEADLINE_S, lambda: RunningServer(_START, first, self._announce)
        )
        numbers = count(1)
        self._workers = [AutomatonWorker(self.server, numbers, self._announce) for _ in range(size)]
        self._is_announced = False
        self._idle: set[int] = set()
        self._waiting = 0  # jobs of tenants with little recent compiling
        self._changed = Condition()

    def start(self) -> None:
        """Begins to run jobs. Call it once; jobs that are submitted before wait for it.

        If numba has not compiled the server's own code yet, the server starts now, and jobs wait until it is
        ready. Otherwise the first job starts it. The first job forks the first process.
        """
        try:
            if not CompiledNote(FOLDER).holds():
                with suppress(CompilerError):  # the first job tries again
                    self.server.started()
        finally:
            with self._changed:
                self._idle.update(range(len(self._workers)))
                self._changed.notify_all()

    def build(self, job: Job) -> Result:
        """As `AutomatonWorker.build`, as soon as a process is free for the job."""
        number = self._take(self._spending.is_heavy(job.tenant))
        try:
            self.server.started()  # no tenant is charged for its start
            began = time.monotonic()
            try:
                return self._workers[number].build(job)
            finally:
                self._spending.add(job.tenant, time.monotonic() - began)
        finally:
            with self._changed:
                self._idle.add(number)
                self._changed.notify_all()

    def _take(self, is_heavy: bool) -> int:
        """Takes the last idle process, which has cached most; waits for one. Returns its number."""
        with self._changed:
            self._waiting += not is_heavy
            self._changed.wait_for(lambda: bool(self._idle) and not (is_heavy and self._waiting))
            self._waiting -= not is_heavy
            self._changed.notify_all()
            number = max(self._idle)
            self._idle.remove(number)
            return number

    def close(self) -> None:
        """Ends all processes. No job may be running or be submitted later."""
        for worker in self._workers:
            worker.close()
        self.server.close()

    def _announce(self) -> None:
        """Logs once that a process compiles its own code."""
        if not self._is_announced:
            self._is_announced = True
            log.info("compiling grammar kernels, which can take minutes; the next start finds them compiled")


class AutomatonWorker:
    """One process, forked when it is needed, and again if it ended. For one thread.

    `numbers` gives the server's next process number; `on_compiling` is called when the process begins to
    compile its own code.
    """

    def __init__(self, server: KeptServer, numbers: count[int], on_compiling: Callable[[], None]) -> None:
        self._server = server
        self._numbers = numbers
        self._on_compiling = on_compiling
        self._process: _Process | None = None

    @property
    def has_process(self) -> bool:
        return self._process is not None

    def build(self, job: Job) -> Result:
        """The job's result. Raises GrammarError for a wrong grammar, NotCoveredError for a keyword without
        an automaton, TooLargeError past a limit of states, masks, memory or time, TakesLongError if a short
        job takes longer and may not go on, CompilerError for other failures."""
        process = self._started()
        try:
            result = self._answer(process, job)
        except ChannelClosedError:
            raise self._death(process, job) from None
        except TakesLongError:
            self.close()
            raise
        except Exception as error:  # garbled bytes raise errors of all kinds
            self.close()
            raise CompilerError(f"its process could not be used: {error!r}") from None
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def _answer(self, process: _Process, job: Job) -> Result | Exception:
        """The job's result."""
        process.begin(job)
        while (said := process.next_message())[:1] in (PROCESS, NOTICE):
            if said[:1] == PROCESS:
                process.know_pid(said[1:])
            else:
                self._on_compiling()
        answer = read_answer(said[1:])
        assert isinstance(answer, Automaton | str | Exception)
        if said[:1] == LAST_RESULT:
            self.close()
        return answer

    def _death(self, process: _Process, job: Job) -> TooLargeError | CompilerError:
        """The error of a job whose process ended without a result."""
        status = process.status()
        self.close()
        match status:
            case None:
                return CompilerError("the process that builds automata ended")
            case int() if status == -signal.SIGPROF:
                return TooLargeError(f"it took more than {job.deadline_s:g} s of processor time")
            case int() if status == -signal.SIGSEGV:
                return TooLargeError("it is nested too deep")
            case int() if status == -signal.SIGABRT:
                return TooLargeError("it took too much memory")
            case int() if status == NOT_FORKED:
                return CompilerError("no process could be started for it")
        return ProcessEndedError(f"its process ended with {end_in_words(status)}")

    def _started(self) -> _Process:
        if self._process is not None and self._process.has_ended():
            self.close()  # it ended between jobs
        if self._process is None:
            self._process = _Process(self._server.started(), next(self._numbers))
        return self._process


class _Process:
    """A forked process that may do a job."""

    def __init__(self, server: RunningServer, number: int) -> None:
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours, MAX_ANSWER)
        self._server = server
        self._number = number
        self._pid: int | None = None
        with theirs:
            server.fork(number, theirs)

    def has_ended(self) -> bool:
        """Whether it ended between jobs, or will because the server has."""
        return not self._server.is_alive or self.channel.has_ended()

    def begin(self, job: Job) -> None:
        """Sends a job."""
        self._go_on = job.go_on
        self._ends_at = time.monotonic() + job.deadline_s + MARGIN_S
        self._short_s = min(SHORT_S, job.deadline_s)
        self._first_s = self._processor_s()
        self.channel.send(pickle.dumps(job.work, protocol=pickle.HIGHEST_PROTOCOL))

    def know_pid(self, pickled: bytes) -> None:
        pid = read_answer(pickled)
        assert isinstance(pid, int)
        self._pid = pid
        self._first_s = self._processor_s()

    def next_message(self) -> bytes:
        """The next message. Kills the process if it hangs. Raises ChannelClosedError when the process has
        ended, and TakesLongError if a short job has taken its processor time and may not go on."""
        while (left_s := self._ends_at - time.monotonic()) > 0:
            with suppress(TimeoutError):
                return self.channel.receive(min(left_s, LOOK_S) if self._go_on is not None else left_s)
            if self._go_on is not None and self._processor_s() - self._first_s >= self._short_s:
                if not self._go_on():
                    raise TakesLongError
                self._go_on = None
        self._server.tell(KILL, self._number)
        raise ChannelClosedError

    def status(self) -> int | None:
        """How the process ended; None if the server has ended too. Kills a server that does not report it."""
        end = self._server.end_of(self._number, END_DEADLINE_S)
        if end is None:
            self._server.kill()
            return None
        return end.status

    def kill(self) -> None:
        self._server.tell(KILL, self._number)
        self.channel.close()

    def _processor_s(self) -> float:
        return 0.0 if self._pid is None else processor_s(self._pid)
