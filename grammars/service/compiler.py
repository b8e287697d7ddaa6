"""Compiles grammars in other threads and caches them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...runtime.grammar_spec import GrammarSpec
from ...runtime.vocabulary import Vocabulary
from ..errors import BusyError, CompilerError, GrammarError, TooLargeError
from ..host.client import HostServer
from ..host.grammar import HostGrammar
from ..host.messages import HostVocabulary
from ..masks.spellings import Spellings
from ..tags.special_tokens import SpecialTokens
from .cache import GrammarCache
from .digest import digest_of
from .files import GrammarFiles
from .host_jobs import HostJobs
from .lanes import LARGE, Lanes
from .refused import Refused
from .routes import Asked, Compiled, Routes
from .spending import Spending
from .worker import AutomatonWorkers

Answer: TypeAlias = Compiled | GrammarError | CompilerError | BusyError
CACHE_BYTES = 256 << 20
THREADS = 4  # each waits for one grammar, compiled by a worker or by llguidance
LARGE_THREADS = 2  # threads that may compile large or slow grammars
WORKERS = LARGE_THREADS + 1  # so that slow grammars delay no other
MAX_TEXT = 1 << 20  # characters; parsing a longer text would delay the loop
MAX_TAGS_TEXT = 8 << 20  # enough for a hundred tools; a faster parser reads them

log = logging.getLogger(__name__)


class GrammarCompiler:
    """`submit` returns at once; `finished` returns the answers that are ready, in no particular order.

    vocab_size: the model's number of logits, at least the number of tokens
    files: compiled grammars on disk, for the next start
    on_finished: called from any thread when `finished` may have new answers
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        vocab_size: int,
        *,
        files: GrammarFiles | None = None,
        on_finished: Callable[[], None] = lambda: None,
    ) -> None:
        self._spelled = vocabulary.for_automata()
        self._on_finished = on_finished
        spending = Spending()
        self._threads = Lanes("grammars", THREADS, LARGE_THREADS, spending=spending)
        server = HostServer(_host_vocabulary(vocabulary, vocab_size))
        self._host = HostJobs(server, vocabulary.eos, spending)
        spellings = Spellings(self._spelled.offsets, self._spelled.data, vocabulary.eos, vocab_size)
        names = vocabulary.special_names
        special_bytes = {name: self._spelled.token_bytes(token) for name, token in names.items()}
        self._workers = AutomatonWorkers(spellings, SpecialTokens(special_bytes), WORKERS, spending)
        self._routes = Routes(self._workers, self._host, files)
        self._cache: GrammarCache[bytes, Compiled] = GrammarCache(CACHE_BYTES, on_finished)
        self._tickets: dict[str, Future[Compiled]] = {}
        self._refused = Refused()
        self._ended: deque[tuple[bytes, Future[Compiled]]] = deque()
        """Grammars that ended in other threads, by the digest of their spec, not yet processed."""

    @property
    def pending(self) -> int:
        return len(self._tickets)

    def start(self) -> None:
        """Begins to build automata. Call it once; grammars that are submitted before wait for it.

        The processes that compile grammars start with the first grammar that needs them, because many servers
        get no grammar. The exception is a process whose own code numba has not compiled yet: it starts now,
        because compiling that code can take minutes.
        """
        self._threads.submit(0, self._workers.start)

    def submit(self, ticket: str, spec: GrammarSpec, *, tenant: str = "") -> None:
        """Begins to compile a grammar for a ticket. The compile time is charged to `tenant`."""
        self._tickets[ticket] = self._future_of(spec, tenant)

    def cancel(self, ticket: str) -> None:
        """Forgets a ticket. A grammar that only this ticket asked for is not begun."""
        future = self._tickets.pop(ticket, None)
        if future is not None and future not in self._tickets.values() and future.cancel():
            self._take_ended()

    def finished(self) -> list[tuple[str, Answer]]:
        ready = [(ticket, future) for ticket, future in self._tickets.items() if future.done()]
        for ticket, _ in ready:
            del self._tickets[ticket]
        self._take_ended()
        self._cache.trim()
        return [(ticket, _answer(future)) for ticket, future in ready]

    def spelled(self, tokens: NDArray[np.int32]) -> bytes:
        """The bytes of tokens [n] as automata read them; an end-of-sequence token has none."""
        offsets, data = self._spelled.offsets, self._spelled.data.data
        starts, ends = offsets[tokens].tolist(), offsets[tokens + 1].tolist()
        return b"".join(data[start:end] for start, end in zip(starts, ends, strict=True))

    def close(self) -> None:
        self._threads.close()
        self._host.close()
        self._workers.close()

    # One grammar

    def _future_of(self, spec: GrammarSpec, tenant: str) -> Future[Compiled]:
        digest = digest_of(spec)
        refusal = self._refused.reason(digest)
        if refusal is not None:
            return self._failed(refusal)
        future = self._cache.get(digest, lambda: self._begun(spec, digest, tenant))
        fault = _fault_of(future)
        if fault is None:
            return future
        self._cache.forget(digest, future)
        self._refused.note(digest, fault)
        return self._future_of(spec, tenant)

    def _begun(self, spec: GrammarSpec, digest: bytes, tenant: str) -> Future[Compiled]:
        most = MAX_TAGS_TEXT if spec.kind == "structural_tag" else MAX_TEXT
        size = len(spec.text)
        if size > most:
            return self._failed(GrammarError(f"it has {size} characters; the most is {most}"))
        future = self._threads.submit(
            size,
            lambda: self._routes.compiled(Asked(spec, tenant)),
            tenant,
            None if size > LARGE else lambda go_on: self._routes.compiled(Asked(spec, tenant, go_on)),
        )
        future.add_done_callback(lambda done: self._ended.append((digest, done)))
        return future

    def _failed(self, error: Exception) -> Future[Compiled]:
        future: Future[Compiled] = Future()
        future.set_exception(error)
        self._on_finished()
        return future

    def _take_ended(self) -> None:
        """Forgets failures that the machine may have caused."""
        while self._ended:
            digest, future = self._ended.popleft()
            if not _is_lasting(future):
                self._cache.forget(digest, future)
                self._refused.note(digest, None if future.cancelled() else future.exception())
                _log_fault(future)


def _host_vocabulary(vocabulary: Vocabulary, vocab_size: int) -> HostVocabulary:
    special = [*np.flatnonzero(vocabulary.special).tolist(), *range(vocabulary.size, vocab_size)]
    offsets = vocabulary.offsets.astype(np.int32).tobytes()
    return HostVocabulary(offsets, vocabulary.data.tobytes(), special, vocabulary.eos, vocab_size)


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
    """Logs an unexpected error. The processes have already logged their own."""
    error = None if made.cancelled() else made.exception()
    if not isinstance(error, BusyError | CompilerError | TooLargeError | TimeoutError | None):
        log.warning("compiling a grammar failed", exc_info=error)


def _is_lasting(made: Future[Compiled]) -> bool:
    return not made.cancelled() and isinstance(made.exception(), GrammarError | None)


def _fault_of(future: Future[Compiled]) -> Exception | None:
    """Why the grammar's process can't be used any more; None if it can."""
    if not future.done() or future.cancelled() or future.exception() is not None:
        return None
    made = future.result()
    return made.fault if isinstance(made, HostGrammar) else None
