"""Compiles grammars off the caller's loop and caches them."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...runtime.grammar_spec import GrammarSpec
from ..errors import BusyError, CompilerError, GrammarError, TooLargeError
from ..host.client import HostServer
from ..host.early_start import is_for_host
from ..host.grammar import HostGrammar
from ..host.messages import HostVocabulary
from ..masks.token_trie import Spellings
from ..tags.special_tokens import SpecialTokens
from .cache import GrammarCache
from .digest import digest_of
from .files import GrammarFiles
from .host_threads import HostAttempt, HostStart, HostThreads
from .lanes import Lanes
from .refused import Refused
from .routes import Asked, Compiled, Routes, host_job
from .spending import Spending
from .worker import AutomatonWorkers

Answer: TypeAlias = Compiled | GrammarError | CompilerError | BusyError
GRACE_S = (
    0.025  # to wait for an automaton: most are compiled by then, and a reply's masks take llguidance as long
)
CACHE_BYTES = 256 << 20
WORKERS = 2  # a slow grammar delays no other
THREADS = 4  # each waits for one grammar, at a worker or at llguidance
LARGE_THREADS = 2  # of the threads may take large grammars: one at a worker, one at llguidance
MAX_TEXT = 1 << 20  # characters; parsing more would delay the loop
MAX_TAGS_TEXT = 8 << 20  # enough for a hundred tools; a faster parser reads them

log = logging.getLogger(__name__)


class _Work(NamedTuple):
    """A grammar that is being compiled. Requests that ask now get `answer`: the `lasting` result, or the
    matcher of llguidance's `attempt` if that comes first."""

    source: bytes  # digest of the spec
    is_for_host: bool
    answer: Future[Compiled]
    lasting: Future[Compiled]
    attempt: HostAttempt


class _Ticket(NamedTuple):
    """A request waits for `future`: the grammar's answer, or its lasting result."""

    answer: Future[Compiled]
    future: Future[Compiled]


class GrammarCompiler:
    """`submit` returns at once; `finished` returns the answers that are ready, in no particular order.

    offsets, data: the bytes of token i are data[offsets[i]:offsets[i + 1]]; int32, uint8
    special: [tokens], tokens that never match as text
    spelled_offsets, spelled_data: the bytes as automata read them; no text has a special token's bytes
    special_names: special tokens that a structural tag may name
    vocab_size: the model's number of logits, at least the number of tokens
    files: compiled grammars on disk, for the next start
    on_finished: called from any thread when `finished` may have new answers
    grace_s: the time that a request waits for an automaton before it starts with llguidance
    """

    def __init__(
        self,
        *,
        offsets: NDArray[np.int32],
        data: NDArray[np.uint8],
        special: NDArray[np.bool_],
        spelled_offsets: NDArray[np.int32],
        spelled_data: NDArray[np.uint8],
        special_names: Mapping[str, int],
        eos_tokens: tuple[int, ...],
        vocab_size: int,
        files: GrammarFiles | None = None,
        on_finished: Callable[[], None] = lambda: None,
        grace_s: float = GRACE_S,
    ) -> None:
        self._offsets = offsets
        self._data = data
        self._special = special
        self._spelled_offsets = spelled_offsets
        self._spelled_data = spelled_data
        self._eos_tokens = eos_tokens
        self._vocab_size = vocab_size
        self._on_finished = on_finished
        self._grace_s = grace_s
        spending = Spending()
        self._threads = Lanes("grammars", THREADS, LARGE_THREADS, spending=spending)
        lanes = Lanes("host-grammars", THREADS, LARGE_THREADS, spending=spending)
        self._host = HostThreads(lanes, HostServer(self._host_vocabulary()), eos_tokens, spending)
        spellings = Spellings(spelled_offsets, spelled_data, eos_tokens, vocab_size)
        special_bytes = {name: self.spelled(np.array([token])) for name, token in special_names.items()}
        self._workers = AutomatonWorkers(spellings, SpecialTokens(special_bytes), WORKERS, spending)
        self._routes = Routes(self._workers, self._host, files)
        self._cache: GrammarCache[bytes, Compiled] = GrammarCache(CACHE_BYTES, on_finished)
        self._tickets: dict[str, _Ticket] = {}
        self._works: dict[Future[Compiled], _Work] = {}  # by answer
        self._in_grace: dict[
            Future[Compiled], float
        ] = {}  # answers that llguidance may give, and when it may begin
        self._refused = Refused()
        self._ended: deque[Future[Compiled]] = deque()  # ended in other threads, not yet processed

    @property
    def pending(self) -> int:
        return len(self._tickets)

    def start(self) -> None:
        """Starts the processes, so that the first grammar need not wait for them. Must be called first."""
        self._threads.submit(0, self._workers.start)
        self._host.start()

    def submit(self, ticket: str, spec: GrammarSpec, *, tenant: str = "") -> None:
        """Begins to compile a grammar for a ticket. `tenant` pays for the time."""
        answer = self._answer_to(spec, tenant)
        work = self._works.get(answer)
        if work and not spec.reproducible and work.is_for_host:
            self._in_grace.setdefault(answer, time.monotonic() + self._grace_s)
        self._tickets[ticket] = _Ticket(answer, work.lasting if work and spec.reproducible else answer)

    def cancel(self, ticket: str) -> None:
        """Forgets a ticket. A grammar that only this ticket wants is not begun."""
        cancelled = self._tickets.pop(ticket, None)
        if cancelled is not None:
            self._leave(cancelled)

    def finished(self) -> list[tuple[str, Answer]]:
        self._begin_on_host()
        ready = [(name, ticket) for name, ticket in self._tickets.items() if ticket.future.done()]
        results: list[tuple[str, Answer]] = []
        for name, ticket in ready:
            del self._tickets[name]
            results.append((name, _answer(ticket.future)))
            self._leave(ticket)
        self._take_ended()
        self._cache.trim()
        return results

    def due_in(self) -> float | None:
        """Seconds until `finished` must be called to start llguidance; None if it need not."""
        while self._in_grace:
            answer, due = next(iter(self._in_grace.items()))
            if not answer.done():
                return due - time.monotonic()
            del self._in_grace[answer]
        return None

    def spelled(self, tokens: NDArray[np.int32]) -> bytes:
        """The bytes of tokens [n] as automata read them; an end-of-sequence token has none."""
        starts, ends = self._spelled_offsets[tokens].tolist(), self._spelled_offsets[tokens + 1].tolist()
        return b"".join(self._spelled_data.data[start:end] for start, end in zip(starts, ends, strict=True))

    def close(self) -> None:
        self._threads.close()
        self._host.close()
        self._workers.close()

    # One grammar

    def _answer_to(self, spec: GrammarSpec, tenant: str) -> Future[Compiled]:
        digest = digest_of(spec)
        refusal = self._refused.reason(digest)
        if refusal is not None:
            return self._failed(refusal)
        answer = self._cache.get(digest, lambda: self._begun(spec, digest, tenant))
        fault = _fault_of(answer)
        if fault is None:
            return answer
        self._cache.forget(digest, answer)
        self._refused.note(digest, fault)
        return self._answer_to(spec, tenant)

    def _begun(self, spec: GrammarSpec, digest: bytes, tenant: str) -> Future[Compiled]:
        most = MAX_TAGS_TEXT if spec.kind == "structural_tag" else MAX_TEXT
        size = len(spec.text)
        if size > most:
            return self._failed(GrammarError(f"it has {size} characters; the most is {most}"))
        attempt = HostAttempt(lambda: self._host.submit(host_job(spec, "enforce"), tenant))
        asked = Asked(spec, tenant, attempt)
        lasting = self._threads.submit(size, lambda: self._routes.compiled(asked), tenant)
        work = _Work(digest, is_for_host(spec), Future(), lasting, attempt)
        self._works[work.answer] = work
        lasting.add_done_callback(
            partial(self._end, work.answer)
        )  # passing the work would make a reference cycle with its future
        return work.answer

    def _failed(self, error: Exception) -> Future[Compiled]:
        future: Future[Compiled] = Future()
        future.set_exception(error)
        self._on_finished()
        return future

    def _begin_on_host(self) -> None:
        while (left := self.due_in()) is not None and left <= 0:
            answer = next(iter(self._in_grace))
            del self._in_grace[answer]
            work = self._works.get(answer)
            if work is not None:
                work.attempt.begun().add_done_callback(partial(_begin, answer))

    def _end(self, answer: Future[Compiled], lasting: Future[Compiled]) -> None:
        """The lasting result is there, failed or was cancelled; called in any thread."""
        _hand_over(lasting, answer)  # first, as an answer must be complete when its work is dropped
        self._ended.append(answer)
        self._on_finished()

    def _take_ended(self) -> None:
        """Replaces answers by their lasting results. A failure that may be the machine's is not cached."""
        while self._ended:
            source, _, answer, lasting, _ = self._works.pop(self._ended.popleft())
            if _is_of_use(lasting):
                self._cache.replace(source, answer, lasting)
            else:
                self._cache.forget(source, answer)
                self._refused.note(source, None if lasting.cancelled() else lasting.exception())
                _log_fault(lasting)

    def _leave(self, left: _Ticket) -> None:
        """Cancels a grammar that no ticket waits for, if it has not begun."""
        work = self._works.get(left.answer)
        if work is None or work.lasting.running() or work.lasting.done():
            return
        if any(other.answer is left.answer for other in self._tickets.values()):
            return
        if work.lasting.cancel():
            work.attempt.cancel()
            self._take_ended()

    def _host_vocabulary(self) -> HostVocabulary:
        special = [*np.flatnonzero(self._special).tolist(), *range(len(self._special), self._vocab_size)]
        offsets = self._offsets.astype(np.int32).tobytes()
        return HostVocabulary(offsets, self._data.tobytes(), special, self._eos_tokens, self._vocab_size)


def _begin(answer: Future[Compiled], made: Future[HostStart]) -> None:
    """Answers with llguidance's matcher, if llguidance covers the grammar."""
    if not made.cancelled() and made.exception() is None and made.result().may_begin:
        with suppress(InvalidStateError):  # the automaton came first
            answer.set_result(made.result().grammar)


def _hand_over(made: Future[Compiled], answer: Future[Compiled]) -> None:
    """Copies the result to the answer, unless it has one."""
    if made.cancelled():
        answer.cancel()
        return
    error = made.exception()
    with suppress(InvalidStateError):
        answer.set_result(made.result()) if error is None else answer.set_exception(error)


def _answer(made: Future[Compiled]) -> Answer:
    error = made.exception()
    match error:
        case None:
            return made.result()
        case GrammarError() | CompilerError() | BusyError():
            return error
        case TooLargeError() | TimeoutError():
            return GrammarError(f"the grammar can't be compiled: {error}")
    return CompilerError(str(error))


def _log_fault(made: Future[Compiled]) -> None:
    """Logs an unexpected error; those of the processes are in the log already."""
    error = None if made.cancelled() else made.exception()
    if not isinstance(error, BusyError | CompilerError | TooLargeError | TimeoutError | None):
        log.warning("compiling a grammar failed", exc_info=error)


def _is_of_use(made: Future[Compiled]) -> bool:
    return not made.cancelled() and isinstance(made.exception(), GrammarError | None)


def _fault_of(answer: Future[Compiled]) -> Exception | None:
    """Why the grammar's process is gone; None if it is not."""
    if not answer.done() or answer.cancelled() or answer.exception() is not None:
        return None
    made = answer.result()
    return made.fault if isinstance(made, HostGrammar) else None
