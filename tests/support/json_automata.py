"""Helpers for automata of JSON schemas: every order of keys, random walks, spellings."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from itertools import islice, permutations, product
from typing import Any

from arbora.grammars.machine.stack_automaton import StackAutomaton
from arbora.grammars.schema.compile import CompiledSchema, SchemaCompiler
from arbora.grammars.tags.compile import BytesOf, TagCompiler
from arbora.runtime.grammar_spec import GrammarSpec, JsonSpacing

COMPILER = SchemaCompiler()
TAGS = TagCompiler(COMPILER)


def compile_schema(schema: object, whitespace: JsonSpacing = "compact", **options: Any) -> StackAutomaton:
    """The automaton of a schema, or of its text. `options`: fields of `GrammarSpec`."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return COMPILER.compile(GrammarSpec("json_schema", text, whitespace=whitespace, **options)).machine


def compile_tag(
    format: object, bytes_of: BytesOf = str.encode, whitespace: JsonSpacing = "compact", **options: Any
) -> CompiledSchema:
    """The automaton of a structural tag. `options`: fields of `GrammarSpec`."""
    spec = GrammarSpec("structural_tag", json.dumps(format), whitespace=whitespace, **options)
    return TAGS.compile(spec, bytes_of)


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def reordered(value: Any) -> Iterator[Any]:
    """The value with the keys of its objects in every order."""
    if isinstance(value, list):
        yield from (list(items) for items in product(*(list(reordered(item)) for item in value)))
    elif isinstance(value, dict):
        for order in permutations(value):
            for children in product(*(list(reordered(value[name])) for name in order)):
                yield dict(zip(order, children, strict=True))
    else:
        yield value


def accepts_in_some_order(automaton: StackAutomaton, value: object) -> bool:
    return any(automaton.accepts(compact(each)) for each in islice(reordered(value), 2_000))


def walked(automaton: StackAutomaton, chance: random.Random, length: int) -> bytes:
    """A random text of the automaton, which it begins to end after `length` bytes. Asserts that it can."""
    text = bytearray()
    stack: list[int] = []
    state = automaton.start
    while not (automaton.accepting[state] and not stack and (len(text) >= length or chance.random() < 0.3)):
        allowed = steps(automaton, state, stack)
        if not allowed:
            assert automaton.accepting[state] and not stack, f"stuck after {bytes(text)!r}"
            break
        byte = chosen(allowed, chance, len(text) >= length)
        state, stack = allowed[byte]
        text.append(byte)
        assert len(text) < 100 * (length + 100), f"no end after {bytes(text[:200])!r}"
    return bytes(text)


def steps(automaton: StackAutomaton, state: int, stack: list[int]) -> dict[int, tuple[int, list[int]]]:
    """The next state for each allowed byte."""
    found = {}
    for byte in range(256):
        after = list(stack)
        target = automaton.step(state, after, byte)
        if target >= 0:
            found[byte] = target, after
    return found


def chosen(allowed: Mapping[int, object], chance: random.Random, ending: bool) -> int:
    """Any byte, or one that tends to close an open bracket or string."""
    closing = [byte for byte in b'"]}' if byte in allowed]
    if ending and closing and chance.random() < 0.8:
        return chance.choice(closing)
    return chance.choice(list(allowed))
