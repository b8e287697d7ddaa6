"""Masks, context lists and openers agree with stepping every token's bytes over the real stack."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from arbora.grammars.schema import PropertyOrder, SchemaCompiler
from arbora.grammars.stack_automaton import StackAutomaton
from arbora.grammars.stack_masks import StackMasks
from arbora.grammars.token_trie import build_trie
from json_automata import steps

COMPILER = SchemaCompiler()
END = 0
PIECES = ["a", "b", "ab", "name", "é", "\u20ac", "\U0001f600", "1", "12", ".5", "true", "null", " ", "\n"]
JOINTS = ['"', '",', '":', '":"', '"}', '"]', "}", "]", "}}", "]}", "},", '},{"', '{"', "[{", "[[", "["]
JOINTS += [",", ":", "\\", "\\n", "\\u00", "e9", '\\u00e9"']
TOKENS = sorted(
    {bytes([byte]) for byte in range(256)}
    | {text.encode() for text in (*PIECES, *JOINTS)}
    | {(left + right).encode() for left in PIECES for right in JOINTS}
    | {(left + right).encode() for left in JOINTS for right in PIECES}
    | {
        b"a" * 40,
        "é".encode() * 35 + b'",',
        b"b" * 32,
        b'","' + b"a" * 70,
        b'","' + b"a" * 60 + "é".encode() * 11,
    }
    | {"é".encode()[1:] + b'"', "€".encode()[:2], "€".encode()[1:] + b'",'}
)
SCHEMAS: list[Any] = [
    True,
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "a": {"type": "array", "items": {"type": "number"}}},
    },
    {
        "type": "object",
        "properties": {
            "a": {"type": "string", "maxLength": 3},
            "ab": {"enum": ["a", "é"]},
            "b": {"pattern": "^[ab1]+$"},
        },
        "additionalProperties": False,
        "required": ["b"],
    },
    {"type": "array", "items": {"maxLength": 70}},
    {"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 100}},
    {"type": "array", "items": {"anyOf": [{"$ref": "#"}, {"type": "string"}, {"const": {"name": None}}]}},
    {
        "oneOf": [
            {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
            {"required": ["b"]},
        ]
    },
]


@pytest.fixture(scope="module")
def masks() -> StackMasks:
    texts = [b"<end>", *TOKENS]
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    special = np.zeros(len(texts), np.bool_)
    special[END] = True
    trie = build_trie(offsets, np.frombuffer(b"".join(texts), np.uint8), special, (END,), len(texts) + 7)
    return StackMasks(trie)


def leads_somewhere(automaton: StackAutomaton, state: int, stack: list[int], text: bytes) -> bool:
    stack = list(stack)
    for byte in text:
        state = automaton.step(state, stack, byte)
        if state < 0:
            return False
    return True


def random_place(automaton: StackAutomaton, chance: random.Random) -> tuple[int, list[int]]:
    state, stack = automaton.start, list[int]()
    for _ in range(chance.randrange(40)):
        allowed = steps(automaton, state, stack)
        if not allowed:
            break
        state, stack = chance.choice(list(allowed.values()))
    return state, stack


@pytest.mark.parametrize("order", ["schema", "any"])
@pytest.mark.parametrize("schema", SCHEMAS)
def test_a_mask_allows_what_the_bytes_allow(schema: Any, order: PropertyOrder, masks: StackMasks) -> None:
    automaton = COMPILER.compile(json.dumps(schema), property_order=order)
    chance = random.Random(3)
    for _ in range(60):
        state, stack = random_place(automaton, chance)
        mask = masks.of(automaton, state)
        allowed = np.unpackbits(mask.words.view(np.uint8), bitorder="little").astype(bool)
        undecided = set(mask.context.tolist())
        for token, text in enumerate(TOKENS, 1):
            if token in undecided:
                assert not allowed[token]
            else:
                assert allowed[token] == leads_somewhere(automaton, state, stack, text), text
        assert allowed[END] == bool(automaton.accepting[state])


def test_openers_are_the_tokens_that_a_full_stack_forbids(masks: StackMasks) -> None:
    automaton = COMPILER.compile("true")
    mask = masks.of(automaton, automaton.start)
    full = [0] * automaton.max_depth
    allowed = np.unpackbits(mask.words.view(np.uint8), bitorder="little").astype(bool)
    forbidden = {
        token
        for token, text in enumerate(TOKENS, 1)
        if allowed[token] and not leads_somewhere(automaton, automaton.start, full, text)
    }
    assert forbidden == set(mask.openers.tolist())
    assert forbidden


def test_context_lists_are_short_between_members(masks: StackMasks) -> None:
    schema = {"properties": {"a": {"type": "null"}}, "additionalProperties": False}
    automaton = COMPILER.compile(json.dumps(schema))
    state, stack = automaton.start, list[int]()
    for byte in b'{"a":null':
        state = automaton.step(state, stack, byte)
    context = masks.of(automaton, state).context
    assert all(TOKENS[token - 1].startswith(b"}") for token in context.tolist())
