"""Engines that constrain output to a JSON schema, with one interface: compile, accept a text, make masks."""

from __future__ import annotations

import json
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, Protocol

import compiled_clock
import numpy as np
import torch
from arbora.grammars.errors import GrammarError, TooLargeError
from arbora.grammars.host.native import HostCompiler, NativeGrammar
from arbora.grammars.machine.automaton import Automaton
from arbora.grammars.masks.spellings import Spellings
from arbora.grammars.masks.token_trie import build_tries
from arbora.grammars.service.builder import AutomatonBuilder
from arbora.grammars.tags.special_tokens import SpecialTokens
from arbora.kernels.automaton import AutomatonPool, SlotRegisters, cpu
from arbora.runtime.grammar_spec import GrammarSpec, PropertyOrder, Whitespace

PIP_NAMES = {"xgrammar": "xgrammar", "outlines-core": "outlines-core", "llguidance": "llguidance"}
MODULES = {"xgrammar": "xgrammar", "outlines-core": "outlines_core", "llguidance": "llguidance"}
LIMIT_S = 10  # for outlines-core, which takes minutes over some schemas


class Grammar(Protocol):
    @property
    def table_bytes(self) -> int | None: ...

    def accepts(self, text: bytes) -> bool: ...

    def mask_us(self, tokens: list[int]) -> Iterator[float]:
        """Microseconds for the mask before each of the tokens, as long as these are allowed."""


class Engine(Protocol):
    """`ordered`: judged on instances with their keys in the schema's order."""

    @property
    def ordered(self) -> bool: ...

    def compile(self, schema: str) -> Grammar | None: ...


class Words:
    """A vocabulary of byte strings, whose last id is the end of sequence."""

    def __init__(self, texts: list[bytes]) -> None:
        self.texts = [*texts, b""]
        self.end = len(texts)
        self._ids = {text: token for token, text in enumerate(texts) if text}
        self._longest = max(map(len, self._ids))

    @property
    def size(self) -> int:
        return len(self.texts)

    def spellings(self) -> Spellings:
        offsets = np.cumsum([0, *map(len, self.texts)]).astype(np.int32)
        return Spellings(offsets, np.frombuffer(b"".join(self.texts), np.uint8), (self.end,), self.size)

    def tokens(self, text: bytes) -> list[int]:
        """Longest match first."""
        tokens: list[int] = []
        while text:
            length = next(n for n in range(min(self._longest, len(text)), 0, -1) if text[:n] in self._ids)
            tokens.append(self._ids[text[:length]])
            text = text[length:]
        return tokens


class Arbora:
    def __init__(self, words: Words, order: PropertyOrder, whitespace: Whitespace) -> None:
        self.ordered = order == "schema"
        self._order = order
        self._whitespace = whitespace
        self._words = words
        self._builder = AutomatonBuilder(build_tries(words.spellings()), SpecialTokens({}))
        self._builder.warm_up()
        warm_up = self.compile('{"type":"string"}')
        assert warm_up is not None and list(warm_up.mask_us([words.tokens(b"a")[0]]))

    def compile(self, schema: str) -> Grammar | None:
        try:
            spec = GrammarSpec(
                "json_schema",
                schema,
                additional_properties="schema",
                property_order=self._order,
                whitespace=self._whitespace,
            )
            automaton = self._builder.build("", spec)
        except (GrammarError, TooLargeError):
            return None
        return _ArboraGrammar(automaton, self._words)


class _ArboraGrammar:
    """Masks as the sampling kernel makes them on a CPU, for one row, without the call from Python, which is
    one for all rows of a step."""

    def __init__(self, automaton: Automaton, words: Words) -> None:
        self._automaton = automaton
        self._words = words
        self.table_bytes = automaton.nbytes

    def accepts(self, text: bytes) -> bool:
        return self._automaton.machine.accepts(text)

    def mask_us(self, tokens: list[int]) -> Iterator[float]:
        spellings = self._words.spellings()
        registers = SlotRegisters(1, len(spellings.offsets) - 1, "cpu")
        pool = AutomatonPool("cpu", registers, spellings.offsets, spellings.data, [self._words.end])
        pool.load(1, self._automaton.tables)
        pool.enter(0, 1, self._automaton.machine.start, self._automaton.machine.bottom)
        rows = pool.rows(np.zeros(1, np.int32))
        arrays = cpu.arrays(rows)
        times = compiled_clock.buffer()
        for token in tokens:
            yield compiled_clock.mask_us(times, *arrays, pool._own_masks)
            cpu.advance(rows, torch.tensor([token], dtype=torch.int32))


class LlGuidance:
    ordered = False

    def __init__(self, words: Words, whitespace: Whitespace) -> None:
        self._whitespace = whitespace
        special = [token for token, text in enumerate(words.texts) if not text]
        self._words = words
        self._host = HostCompiler(words.texts, special, (words.end,))

    def compile(self, schema: str) -> Grammar | None:
        try:
            spec = GrammarSpec("json_schema", schema, whitespace=self._whitespace)
            return _LlGuidanceGrammar(self._host.compile(spec), self._words)
        except GrammarError:
            return None


class _LlGuidanceGrammar:
    table_bytes = None

    def __init__(self, grammar: NativeGrammar, words: Words) -> None:
        self._grammar = grammar
        self._words = words

    def accepts(self, text: bytes) -> bool:
        matcher = self._grammar.prototype.deep_copy()
        tokens = self._words.tokens(text)
        return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())

    def mask_us(self, tokens: list[int]) -> Iterator[float]:
        matcher = self._grammar.matcher()
        mask = np.zeros(-(-self._words.size // 32), np.int32)
        for token in tokens:
            start = time.perf_counter()
            matcher.fill_mask(mask)
            yield (time.perf_counter() - start) * 1e6
            if matcher.consume(token) is not None:
                return


class XGrammar:
    ordered = False

    def __init__(self, words: Words) -> None:
        import xgrammar

        self._words = words
        info = xgrammar.TokenizerInfo(words.texts, vocab_size=words.size, stop_token_ids=[words.end])
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, schema: str) -> Grammar | None:
        try:
            compiled = self._compiler.compile_json_schema(
                schema, any_whitespace=False, separators=(",", ":"), strict_mode=False
            )
        except RuntimeError:
            return None
        return _XGrammarGrammar(compiled, self._words)


class _XGrammarGrammar:
    def __init__(self, compiled: Any, words: Words) -> None:
        self._compiled = compiled
        self._words = words
        self.table_bytes = int(compiled.memory_size_bytes)

    def accepts(self, text: bytes) -> bool:
        import xgrammar

        matcher = xgrammar.GrammarMatcher(self._compiled)
        return bool(matcher.accept_string(text) and matcher.accept_token(self._words.end))

    def mask_us(self, tokens: list[int]) -> Iterator[float]:
        import xgrammar

        matcher = xgrammar.GrammarMatcher(self._compiled)
        bitmask = xgrammar.allocate_token_bitmask(1, self._words.size)
        for token in tokens:
            start = time.perf_counter()
            matcher.fill_next_token_bitmask(bitmask)
            yield (time.perf_counter() - start) * 1e6
            if not matcher.accept_token(token):
                return


class OutlinesCore:
    """Its schema route to a regex, indexed over single bytes; each schema in a process with a time limit."""

    ordered = True

    def __init__(self, words: Words) -> None:
        from outlines_core import Vocabulary

        self._bytes = Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)})

    def compile(self, schema: str) -> Grammar | None:
        index = within(LIMIT_S, lambda: self._transitions(schema))
        return None if index is None else _OutlinesGrammar(*index)

    def _transitions(self, schema: str) -> tuple[dict[int, dict[int, int]], int, set[int]]:
        from outlines_core import Index, json_schema

        index = Index(json_schema.build_regex_from_schema(schema, ""), self._bytes)
        return index.get_transitions(), index.get_initial_state(), set(index.get_final_states())


class _OutlinesGrammar:
    table_bytes = None

    def __init__(self, transitions: dict[int, dict[int, int]], start: int, ends: set[int]) -> None:
        self._transitions = transitions
        self._start = start
        self._ends = ends

    def accepts(self, text: bytes) -> bool:
        state: int | None = self._start
        for byte in text:
            state = self._transitions.get(state, {}).get(byte) if state is not None else None
        return state in self._ends

    def mask_us(self, tokens: list[int]) -> Iterator[float]:
        return iter(())


def within(seconds: int, make: Callable[[], Any]) -> Any:
    """The result of `make` in a process of its own; None if it fails or takes longer."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)
        try:
            with os.fdopen(writer, "wb") as pipe:
                pickle.dump(make(), pipe)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    try:
        return pickle.loads(data)
    except (EOFError, pickle.UnpicklingError):
        return None


def is_installed(name: str) -> bool:
    return name == "arbora" or find_spec(MODULES[name]) is not None


def engines(name: str, words: Words, whitespace: Whitespace) -> dict[str, Engine]:
    """Ours is measured with both orders of properties. Only ours and llguidance allow other white space."""
    match name:
        case "arbora":
            return {
                "arbora": Arbora(words, "schema", whitespace),
                "arbora, any order": Arbora(words, "any", whitespace),
            }
        case "llguidance":
            return {name: LlGuidance(words, whitespace)}
        case "xgrammar":
            return {name: XGrammar(words)}
        case "outlines-core":
            return {name: OutlinesCore(words)}
    raise SystemExit(f"unknown engine {name!r}; known are arbora, {', '.join(MODULES)}")


def write(value: Any, whitespace: Whitespace) -> list[bytes]:
    """The value as JSON with this white space; in all three forms if the reply may choose."""
    forms: dict[Whitespace, dict[str, Any]] = {
        "indented": {"indent": 2},
        "spaced": {},
        "compact": {"separators": (",", ":")},
    }
    chosen = forms.values() if whitespace == "model" else [forms[whitespace]]
    texts = (json.dumps(value, ensure_ascii=False, **form) for form in chosen)
    return list(dict.fromkeys(text.encode(errors="surrogatepass") for text in texts))
