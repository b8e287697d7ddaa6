"""Compiles grammars off the caller's loop and remembers them."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .automaton import Automaton
from .errors import GrammarError, NotCoveredError, NoValueError, TooLargeError
from .grammar_cache import GrammarCache
from .grammar_files import GrammarFiles
from .host import HostCompiler, HostGrammar
from .regex import literal, without_anchors
from .schema import PropertyOrder, Unenforced
from .token_trie import Spellings
from .worker import AutomatonWorkers, ContextFree, Job, Schema

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "grammar"]
Compiled: TypeAlias = Automaton | HostGrammar
DEADLINE_S = 2.0
CACHE_BYTES = 256 << 20
WORKERS = 2  # a slow grammar holds up nobody else's
THREADS = 4  # each sees to one grammar, at a worker or at llguidance
MAX_TEXT = 1 << 20  # characters; parsing more would hold up the loop


class Source(NamedTuple):
    """A grammar as it was asked for; equal sources share what is compiled.

    `closing`: how a reply can be ended is asked from wherever it stands.
    """

    kind: GrammarKind
    text: str
    prefix: str
    suffix: str
    separators: tuple[str, str]
    property_order: PropertyOrder
    unenforced: Unenforced
    closing: bool


class _Ticket(NamedTuple):
    """What someone waits for."""

    source: Source
    future: Future[Compiled]


class GrammarCompiler:
    """`submit` returns at once; `finished` hands out what is ready, in no particular order.

    offsets, data: the bytes of token i are data[offsets[i]:offsets[i + 1]]; int32, uint8
    special: [tokens] those never match as text
    vocab_size: the model's number of logits, at least the number of tokens
    files: where compiled grammars are kept for the next start
    on_finished: called from any thread when `finished` may have something new
    """

    def __init__(
        self,
        *,
        offsets: NDArray[np.int32],
        data: NDArray[np.uint8],
        special: NDArray[np.bool_],
        eos_tokens: tuple[int, ...],
        vocab_size: int,
        files: GrammarFiles | None = None,
        on_finished: Callable[[], None] = lambda: None,
    ) -> None:
        self._offsets = offsets
        self._data = data
        self._special = special
        self._eos_tokens = eos_tokens
        self._vocab_size = vocab_size
        self._threads = ThreadPoolExecutor(THREADS, "grammars")
        self._host_threads = ThreadPoolExecutor(THREADS, "host-grammars")
        self._host: Future[HostCompiler] = Future()
        self._files = files
        self._workers = AutomatonWorkers(Spellings(offsets, data, special, eos_tokens, vocab_size), WORKERS)
        self._cache: GrammarCache[Source, Compiled] = GrammarCache(CACHE_BYTES, on_finished)
        self._tickets: dict[str, _Ticket] = {}

    @property
    def pending(self) -> int:
        return len(self._tickets)

    def start(self) -> None:
        """Begins with what the first grammar should not wait for; what is submitted before does wait."""
        self._threads.submit(self._workers.start)
        self._host_threads.submit(self._make_host)

    def submit(
        self,
        ticket: str,
        kind: GrammarKind,
        text: str,
        *,
        prefix: str = "",
        suffix: str = "",
        separators: tuple[str, str] = (",", ":"),
        property_order: PropertyOrder = "schema",
        unenforced: Unenforced = "refuse",
        closing: bool = False,
    ) -> None:
        source = Source(kind, text, prefix, suffix, separators, property_order, unenforced, closing)
        self._tickets[ticket] = _Ticket(source, self._cache.get(source, lambda: self._begun(source)))

    def cancel(self, ticket: str) -> None:
        """Nobody waits for it any more. What only it wanted is not begun."""
        cancelled = self._tickets.pop(ticket, None)
        if cancelled is None or any(other.future is cancelled.future for other in self._tickets.values()):
            return
        if cancelled.future.cancel():
            self._cache.forget(*cancelled)

    def finished(self) -> list[tuple[str, Compiled | GrammarError]]:
        ready = [(name, ticket) for name, ticket in self._tickets.items() if ticket.future.done()]
        results: list[tuple[str, Compiled | GrammarError]] = []
        for name, ticket in ready:
            del self._tickets[name]
            error = ticket.future.exception()
            if error is not None and not isinstance(error, GrammarError):
                self._cache.forget(*ticket)  # it may be the machine's fault, and gone next time
                error = GrammarError(f"the grammar can't be compiled: {error}")
            results.append((name, error or ticket.future.result()))
        self._cache.trim()
        return results

    def spelled(self, tokens: NDArray[np.int32]) -> bytes:
        """What tokens [n] spell for an automaton: an end of sequence nothing."""
        kept = tokens[~np.isin(tokens, self._eos_tokens)]
        starts, ends = self._offsets[kept].tolist(), self._offsets[kept + 1].tolist()
        return b"".join(self._data.data[start:end] for start, end in zip(starts, ends, strict=True))

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._host_threads.shutdown(cancel_futures=True)
        self._workers.close()

    def _begun(self, source: Source) -> Future[Compiled]:
        if len(source.text) > MAX_TEXT:
            return _refused(f"it has {len(source.text)} characters; the most is {MAX_TEXT}")
        return self._threads.submit(self._compiled, source)

    def _compiled(self, source: Source) -> Compiled:
        compiled = self._matcher_of(source)
        if source.closing and isinstance(compiled, Automaton):
            compiled.find_ways_out()
        return compiled

    def _matcher_of(self, source: Source) -> Compiled:
        match source.kind:
            case "json_schema" | "json_object":
                return self._schema(source)
            case "regex" | "choice":
                return self._regex(source)
            case "grammar":
                return self._context_free(source)

    def _schema(self, source: Source) -> Compiled:
        """Keywords are left out, where that is allowed, once nobody enforces them."""
        if source.unenforced == "allow":
            try:
                return self._schema_enforcing("refuse", source)
            except NoValueError:
                raise
            except GrammarError:
                pass
        return self._schema_enforcing(source.unenforced, source)

    def _schema_enforcing(self, unenforced: Unenforced, source: Source) -> Compiled:
        """What has no automaton is left to the host, which refuses in its own words."""
        text = source.text if source.kind == "json_schema" else '{"type":"object"}'
        parts = (source.separators, source.prefix, source.suffix, source.property_order, unenforced)
        refusal: NoValueError | None = None
        if not self._names_special_token(source.prefix + source.suffix):
            try:
                return self._built(Schema(text, *parts))
            except NoValueError as error:
                refusal = error
            except (NotCoveredError, TooLargeError):
                pass
        try:
            return self._in_time(
                lambda host: host.json_schema(
                    text, source.prefix, source.suffix, source.separators, unenforced
                )
            )
        except GrammarError as error:
            raise refusal or error from None

    def _regex(self, source: Source) -> Compiled:
        regex = without_anchors(source.text) if source.kind == "regex" else _any_of(source.text)
        try:
            return self._built(regex)
        except TooLargeError:
            return self._in_time(lambda host: host.regex(regex))

    def _context_free(self, source: Source) -> Compiled:
        """Read in a process that can be ended, as its reader can be slow; followed by the host."""
        try:
            lark = self._workers.build(Job("", ContextFree(source.text), DEADLINE_S))
        except TooLargeError as error:
            raise GrammarError(f"the grammar can't be read: {error}") from None
        assert isinstance(lark, str)
        return self._in_time(lambda host: host.lark(lark))

    def _built(self, grammar: str | Schema) -> Automaton:
        key = repr(grammar)
        kept = self._files.get(key) if self._files else None
        if kept is not None:
            return kept
        automaton = self._workers.build(Job(key, grammar, DEADLINE_S))
        assert isinstance(automaton, Automaton)
        if self._files:
            self._files.put(key, automaton)
        return automaton

    def _in_time(self, compile_with: Callable[[HostCompiler], HostGrammar]) -> HostGrammar:
        """llguidance can't be stopped: past the deadline its thread goes on for nobody."""
        compiling = self._host_threads.submit(compile_with, self._host.result())
        try:
            return compiling.result(DEADLINE_S)
        except TimeoutError:
            compiling.cancel()  # if others' grammars kept it from beginning
            raise TimeoutError(f"it takes more than {DEADLINE_S:g} s") from None

    def _names_special_token(self, text: str) -> bool:
        """Whether the model writes it with tokens that never match as text."""
        return any(name in text.encode() for name in self._special_names)

    def _make_host(self) -> None:
        try:
            self._host.set_result(self._host_compiler())
        except Exception as error:  # for whoever waits for it
            self._host.set_exception(error)

    def _host_compiler(self) -> HostCompiler:
        raw = self._data.tobytes()
        tokens = [raw[start:end] for start, end in zip(self._offsets, self._offsets[1:], strict=False)]
        tokens += [b""] * (self._vocab_size - len(tokens))
        special = [*np.flatnonzero(self._special).tolist(), *range(len(self._special), self._vocab_size)]
        return HostCompiler(tokens, special, self._eos_tokens)

    @cached_property
    def _special_names(self) -> list[bytes]:
        raw = self._data.tobytes()
        spans = ((self._offsets[token], self._offsets[token + 1]) for token in np.flatnonzero(self._special))
        return [raw[start:end] for start, end in spans if end > start]


def _refused(message: str) -> Future[Compiled]:
    future: Future[Compiled] = Future()
    future.set_exception(GrammarError(message))
    return future


def _any_of(text: str) -> str:
    choices = json.loads(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise GrammarError("choice must be a list of at least one string, none of them empty")
    return "|".join(literal(choice) for choice in choices)
