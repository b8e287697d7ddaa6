"""Compiles grammars in other threads and caches them."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...runtime.compiled_code import CompiledNote
from ...runtime.grammar_spec import GrammarSpec
from ...runtime.vocabulary import Vocabulary
from ..errors import BusyError, CompilerError, GrammarError, TooLargeError
from ..host.grammar import HostGrammar
from ..masks.spellings import Spellings
from ..processes.compiler_pool import CompilerPool
from ..processes.compiler_process import GoOn
from ..processes.fork_client import RestartingForkServer
from ..processes.messages import MAX_AUTOMATON, MAX_STATE, HostVocabulary, encode
from ..tags.special_tokens import SpecialTokens
from .cache import GrammarCache
from .compiler_selector import Compiled, CompileRequest, CompilerSelector, digest_spec
from .fair_thread_pool import FairThreadPool, RecentTimes
from .files import FOLDER, GrammarFiles
from .refused import RefusedGrammars

Answer: TypeAlias = Compiled | GrammarError | CompilerError | BusyError
CACHE_BYTES = 256 << 20
THREADS = 4  # threads, each of which waits for one grammar that a process compiles
LARGE_THREADS = 2  # how many of these threads may compile large or slow grammars
# The same for grammars that only llguidance compiles: they need not wait until automata can be built.
LLGUIDANCE_THREADS = 2
LARGE_LLGUIDANCE_THREADS = 1
MAX_TEXT = 1 << 20  # maximal characters of a grammar; parsing a longer text would delay the loop
MAX_TAGS_TEXT = 8 << 20  # maximal characters of a structural tag: a hundred tools; a faster parser reads it
BUILDER_START = "from arbora.grammars.service.builder_process import main; main()"
BUILDER_START_S = 1200.0  # seconds; at its first start the server compiles its own code
HOST_START = "from arbora.grammars.host.server import main; main()"
HOST_START_S = 60.0

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
        self._is_announced = False
        times = RecentTimes()
        self._threads = FairThreadPool("grammars", THREADS, LARGE_THREADS, times)
        self._llguidance_threads = FairThreadPool(
            "llguidance", LLGUIDANCE_THREADS, LARGE_LLGUIDANCE_THREADS, times
        )
        self._builders = CompilerPool(
            RestartingForkServer(
                "builds automata",
                BUILDER_START_S,
                BUILDER_START,
                _builder_vocabulary(vocabulary, self._spelled, vocab_size),
                self._announce,
            ),
            MAX_AUTOMATON,
            times.add,
        )
        first = encode(_host_vocabulary(vocabulary, vocab_size))
        server = RestartingForkServer("runs llguidance", HOST_START_S, HOST_START, first)
        self._followers = CompilerPool(server, MAX_STATE, times.add)
        self._selector = CompilerSelector(self._builders, self._followers, vocabulary.eos, files)
        self._cache: GrammarCache[bytes, Compiled] = GrammarCache(CACHE_BYTES, on_finished)
        self._tickets: dict[str, Future[Compiled]] = {}
        self._refused = RefusedGrammars()

    def start(self) -> None:
        """Starts the server that builds automata if numba has not compiled its code yet, which can take
        minutes. Otherwise a server starts with the first grammar that needs it, because many get none."""
        self._threads.submit(0, lambda _: self._compile_own_code())

    def submit(self, ticket: str, spec: GrammarSpec, *, tenant: str = "") -> None:
        """Begins to compile a grammar for a ticket. Charges `tenant` for the compile time."""
        self._tickets[ticket] = self._find_future(spec, tenant)

    def cancel(self, ticket: str) -> None:
        """Forgets a ticket. If only this ticket asked for a grammar, does not begin it."""
        future = self._tickets.pop(ticket, None)
        if future is not None and future not in self._tickets.values() and future.cancel():
            self._take_done()

    def finished(self) -> list[tuple[str, Answer]]:
        ready = [(ticket, future) for ticket, future in self._tickets.items() if future.done()]
        for ticket, _ in ready:
            del self._tickets[ticket]
        self._take_done()
        return [(ticket, _read_answer(future)) for ticket, future in ready]

    def spelled(self, tokens: NDArray[np.int32]) -> bytes:
        """The bytes of tokens [n] as automata read them; an end-of-sequence token has none."""
        offsets, data = self._spelled.offsets, self._spelled.data.data
        starts, ends = offsets[tokens].tolist(), offsets[tokens + 1].tolist()
        return b"".join(data[start:end] for start, end in zip(starts, ends, strict=True))

    def close(self) -> None:
        self._threads.close()
        self._llguidance_threads.close()
        self._followers.close()
        self._builders.close()

    def _find_future(self, spec: GrammarSpec, tenant: str) -> Future[Compiled]:
        digest = digest_spec(spec)
        refusal = self._refused.find_reason(digest)
        if refusal is not None:
            return self._fail(refusal)
        future = self._cache.get(digest, lambda: self._begin(spec, tenant))
        fault = _find_fault(future)
        if fault is None:
            return future
        self._cache.forget(digest, future)
        self._refused.note(digest, fault)
        return self._find_future(spec, tenant)

    def _begin(self, spec: GrammarSpec, tenant: str) -> Future[Compiled]:
        limit = MAX_TAGS_TEXT if spec.kind == "structural_tag" else MAX_TEXT
        size = len(spec.text)
        if size > limit:
            return self._fail(GrammarError(f"it has {size} characters; the most is {limit}"))

        def compile_spec(go_on: GoOn) -> Compiled:
            return self._selector.compile(CompileRequest(spec, tenant, go_on))

        threads = self._llguidance_threads if spec.kind == "grammar" else self._threads
        return threads.submit(size, compile_spec, tenant)

    def _fail(self, error: Exception) -> Future[Compiled]:
        future: Future[Compiled] = Future()
        future.set_exception(error)
        self._on_finished()
        return future

    def _compile_own_code(self) -> None:
        if not CompiledNote(FOLDER).holds():
            with suppress(CompilerError):  # on failure the first job tries again
                self._builders.server.wait_ready()

    def _announce(self) -> None:
        """Logs once that a process compiles its own code."""
        if not self._is_announced:
            self._is_announced = True
            log.info("compiling grammar kernels, which can take minutes; the next start finds them compiled")

    def _take_done(self) -> None:
        """Forgets failures that the machine may have caused."""
        for digest, future in self._cache.take_done():
            if not _is_lasting(future):
                self._cache.forget(digest, future)
                self._refused.note(digest, None if future.cancelled() else future.exception())
                _log_fault(future)


def _builder_vocabulary(vocabulary: Vocabulary, spelled: Vocabulary, vocab_size: int) -> bytes:
    """What the server that builds automata reads first: `Spellings` and `SpecialTokens`, pickled."""
    spellings = Spellings(spelled.offsets, spelled.data, vocabulary.eos, vocab_size)
    names = vocabulary.special_names
    special = SpecialTokens({name: spelled.token_bytes(token) for name, token in names.items()})
    return pickle.dumps((spellings, special), protocol=pickle.HIGHEST_PROTOCOL)


def _host_vocabulary(vocabulary: Vocabulary, vocab_size: int) -> HostVocabulary:
    special = [*np.flatnonzero(vocabulary.special).tolist(), *range(vocabulary.size, vocab_size)]
    offsets = vocabulary.offsets.astype(np.int32).tobytes()
    return HostVocabulary(offsets, vocabulary.data.tobytes(), special, vocabulary.eos, vocab_size)


def _read_answer(made: Future[Compiled]) -> Answer:
    error = made.exception()
    match error:
        case None:
            return made.result()
        case GrammarError() | CompilerError() | BusyError():
            return error
        case TooLargeError():
            return GrammarError(f"the grammar can't be compiled: {error}")
    return CompilerError(str(error))


def _log_fault(made: Future[Compiled]) -> None:
    """Logs an unexpected error. The processes have already logged their own."""
    error = None if made.cancelled() else made.exception()
    if not isinstance(error, BusyError | CompilerError | TooLargeError | None):
        log.warning("compiling a grammar failed", exc_info=error)


def _is_lasting(made: Future[Compiled]) -> bool:
    return not made.cancelled() and isinstance(made.exception(), GrammarError | None)


def _find_fault(future: Future[Compiled]) -> Exception | None:
    """Why the grammar's process can't be used any more; None if it can."""
    if not future.done() or future.cancelled() or future.exception() is not None:
        return None
    made = future.result()
    return made.find_fault() if isinstance(made, HostGrammar) else None
