"""Compiles grammars off the caller's loop and remembers them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from .automaton import Automaton
from .errors import GrammarError, NotCoveredError, NoValueError, TooLargeError, WrongKeywordError
from .grammar_cache import GrammarCache
from .grammar_files import GrammarFiles
from .host import HostCompiler, HostGrammar
from .lanes import Lanes
from .masks.token_trie import Spellings
from .regex import literal, without_anchors
from .schema import PropertyOrder, Unenforced
from .tags.format import Format, Grammar, Thinking, json_schemas, read_format
from .worker import AutomatonWorkers, ContextFree, Job, Schema, StructuralTag

GrammarKind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]
Compiled: TypeAlias = Automaton | HostGrammar
DEADLINE_S = 2.0
CACHE_BYTES = 256 << 20
WORKERS = 2  # a slow grammar holds up nobody else's
THREADS = 4  # each sees to one grammar, at a worker or at llguidance
LARGE_THREADS = 2  # of them for large grammars: one at a worker, one at llguidance
MAX_TEXT = 1 << 20  # characters; parsing more would hold up the loop
MAX_TAGS_TEXT = 8 << 20  # a hundred tools and their schemas are read by a faster parser
_ANY_TEXT = '{"type":"any_text"}'


class Source(NamedTuple):
    """A grammar as it was asked for; equal sources share what is compiled.

    `closing`: how a reply can be ended is asked from wherever it stands.
    """

    kind: GrammarKind
    text: str
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
    spelled_offsets, spelled_data: the same as automata read it, where no text has a special token's bytes
    special_names: special tokens that a structural tag may name
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
        spelled_offsets: NDArray[np.int32],
        spelled_data: NDArray[np.uint8],
        special_names: Mapping[str, int],
        eos_tokens: tuple[int, ...],
        vocab_size: int,
        files: GrammarFiles | None = None,
        on_finished: Callable[[], None] = lambda: None,
    ) -> None:
        self._offsets = offsets
        self._data = data
        self._special = special
        self._spelled_offsets = spelled_offsets
        self._spelled_data = spelled_data
        self._special_names = special_names
        self._eos_tokens = eos_tokens
        self._vocab_size = vocab_size
        self._threads = Lanes("grammars", THREADS, LARGE_THREADS)
        self._host_threads = Lanes("host-grammars", THREADS, THREADS - 1)
        self._host: Future[HostCompiler] = Future()
        self._files = files
        spellings = Spellings(spelled_offsets, spelled_data, eos_tokens, vocab_size)
        self._workers = AutomatonWorkers(spellings, WORKERS)
        self._cache: GrammarCache[Source, Compiled] = GrammarCache(CACHE_BYTES, on_finished)
        self._tickets: dict[str, _Ticket] = {}

    @property
    def pending(self) -> int:
        return len(self._tickets)

    def start(self) -> None:
        """Begins with what the first grammar should not wait for; what is submitted before does wait."""
        self._threads.submit(0, self._workers.start)
        self._host_threads.submit(0, self._make_host)

    def submit(
        self,
        ticket: str,
        kind: GrammarKind,
        text: str,
        *,
        separators: tuple[str, str] = (",", ":"),
        property_order: PropertyOrder = "schema",
        unenforced: Unenforced = "refuse",
        closing: bool = False,
    ) -> None:
        source = Source(kind, text, separators, property_order, unenforced, closing)
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
        starts, ends = self._spelled_offsets[tokens].tolist(), self._spelled_offsets[tokens + 1].tolist()
        return b"".join(self._spelled_data.data[start:end] for start, end in zip(starts, ends, strict=True))

    def close(self) -> None:
        self._threads.close()
        self._host_threads.close()
        self._workers.close()

    def _begun(self, source: Source) -> Future[Compiled]:
        most = MAX_TAGS_TEXT if source.kind == "structural_tag" else MAX_TEXT
        if len(source.text) > most:
            return _refused(f"it has {len(source.text)} characters; the most is {most}")
        return self._threads.submit(len(source.text), lambda: self._compiled(source))

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
            case "structural_tag":
                return self._structural_tag(source)

    def _schema(self, source: Source) -> Compiled:
        """Keywords are left out, where that is allowed, once nobody enforces them."""
        if source.unenforced == "allow":
            try:
                return self._schema_enforcing("refuse", source)
            except (NoValueError, WrongKeywordError):
                raise
            except GrammarError:
                pass
        return self._schema_enforcing(source.unenforced, source)

    def _schema_enforcing(self, unenforced: Unenforced, source: Source) -> Compiled:
        """What has no automaton is left to the host, which refuses in its own words if it names a keyword."""
        text = source.text if source.kind == "json_schema" else '{"type":"object"}'
        refusal: GrammarError | None = None
        uncovered: NotCoveredError | None = None
        try:
            return self._built(Schema(text, source.separators, source.property_order, unenforced))
        except (NoValueError, WrongKeywordError) as error:
            if isinstance(error, WrongKeywordError) and unenforced == "allow":
                raise
            refusal = error
        except NotCoveredError as error:
            uncovered = error
        except TooLargeError:
            pass
        try:
            return self._in_time(source, lambda host: host.json_schema(text, source.separators, unenforced))
        except NotCoveredError as error:
            raise refusal or error from None
        except GrammarError as error:
            raise refusal or uncovered or error from None

    def _regex(self, source: Source) -> Compiled:
        regex = without_anchors(source.text) if source.kind == "regex" else _any_of(source.text)
        try:
            return self._built(regex)
        except TooLargeError:
            return self._in_time(source, lambda host: host.regex(regex))

    def _context_free(self, source: Source) -> Compiled:
        lark = self._lark(source.text)
        return self._in_time(source, lambda host: host.lark(lark))

    def _lark(self, grammar: str) -> str:
        """Read in a process that can be ended, as its reader can be slow."""
        try:
            lark = self._workers.build(Job("", ContextFree(grammar), DEADLINE_S))
        except TooLargeError as error:
            raise GrammarError(f"the grammar can't be read: {error}") from None
        assert isinstance(lark, str)
        return lark

    def _structural_tag(self, source: Source) -> Compiled:
        """Where every schema may be loosened no tools are too many: at worst no call is enforced."""
        format = read_format(source.text)
        schemas = json_schemas(format)
        try:
            return self._built(self._tagged(source, source.text))
        except (NotCoveredError, NoValueError) as error:
            return self._tagged_by_host(source, format, error)
        except TooLargeError as error:
            if not schemas or any(schema.otherwise == "refuse" for schema in schemas):
                refusal = GrammarError(f"the structural tag is too large: {error}")
                return self._tagged_by_host(source, format, refusal)
        free = self._built(self._tagged(source, _ANY_TEXT))
        return replace(free, left_out=tuple(("parameters", f"{schema.function}#") for schema in schemas))

    def _tagged(self, source: Source, text: str) -> StructuralTag:
        return StructuralTag(text, self._special_spellings, source.property_order, source.unenforced)

    def _tagged_by_host(self, source: Source, format: Format, refusal: GrammarError) -> HostGrammar:
        """For what has no automaton and nothing that only automata follow."""
        if isinstance(format, Thinking) and isinstance(format.content, Grammar):
            read = msgspec.structs.replace(format, content=Grammar(self._lark(format.content.grammar)))
            return self._in_time(source, lambda host: host.structural_tag(read))
        try:
            return self._in_time(source, lambda host: host.structural_tag(format))
        except GrammarError:
            raise refusal from None

    def _built(self, grammar: str | Schema | StructuralTag) -> Automaton:
        key = repr(grammar)
        kept = self._files.get(key) if self._files else None
        if kept is not None:
            return kept
        automaton = self._workers.build(Job(key, grammar, DEADLINE_S))
        assert isinstance(automaton, Automaton)
        if self._files:
            self._files.put(key, automaton)
        return automaton

    def _in_time(self, source: Source, compile_with: Callable[[HostCompiler], HostGrammar]) -> HostGrammar:
        """llguidance can't be stopped: past the deadline its thread goes on for nobody."""
        host = self._host.result()
        compiling = self._host_threads.submit(len(source.text), lambda: compile_with(host))
        try:
            return compiling.result(DEADLINE_S)
        except TimeoutError:
            compiling.cancel()  # if others' grammars kept it from beginning
            raise TimeoutError(f"it takes more than {DEADLINE_S:g} s") from None

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
    def _special_spellings(self) -> dict[str, bytes]:
        return {name: self.spelled(np.array([token])) for name, token in self._special_names.items()}


def _refused(message: str) -> Future[Compiled]:
    future: Future[Compiled] = Future()
    future.set_exception(GrammarError(message))
    return future


def _any_of(text: str) -> str:
    choices = json.loads(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise GrammarError("choice must be a list of at least one string, none of them empty")
    return "|".join(literal(choice) for choice in choices)
