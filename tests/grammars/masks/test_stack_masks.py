"""Masks, undecided lists and openers agree with stepping every token's bytes over the real stack."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from arbora.grammars.machine.stack_automaton import StackAutomaton
from arbora.grammars.masks.edge_walks import Limits, WalkedStates
from arbora.grammars.masks.spellings import Spellings
from arbora.grammars.masks.stack import StackMasks
from arbora.grammars.masks.token_trie import (
    MAX_QUOTE_FREE_BYTES,
    OTHER,
    QUOTE,
    QUOTE_FREE,
    TokenTries,
    build_tries,
    make_tries,
)
from arbora.grammars.masks.walker import Walker
from arbora.grammars.masks.walks import Machine, make_buffers
from arbora.runtime.automaton_format import AutomatonTables
from arbora.runtime.grammar_spec import PropertyOrder
from hypothesis import given
from hypothesis import strategies as st
from json_automata import compile_schema, steps
from mask_tables import state_mask
from numpy.typing import NDArray

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
    {
        "type": "object",
        "properties": {name: {"$ref": "#"} for name in ["a", "ab", "b", "name", *map(str, range(40))]}
        | {"12": {"type": "null"}},
        "additionalProperties": False,
        "required": ["12"],
    },
    {"type": "array", "items": {"maxLength": 70}},
    {"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 100}},
    {"type": "array", "items": {"type": "string", "pattern": "^[ab1]+$", "maxLength": 100}},
    {"type": "array", "items": {"type": "string", "pattern": "^(é|\u20aca|[^a\u20ac])*b?$", "maxLength": 90}},
    {"type": "array", "items": {"type": "string", "format": "uri", "maxLength": 300}},
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
    texts = [b"", *TOKENS]
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    data = np.frombuffer(b"".join(texts), np.uint8)
    return StackMasks(build_tries(Spellings(offsets, data, (END,), len(texts) + 7)))


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
def test_a_mask_allows_the_tokens_whose_bytes_are_allowed(
    schema: Any, order: PropertyOrder, masks: StackMasks
) -> None:
    automaton = compile_schema(schema, property_order=order)
    tables = masks.build(automaton)
    chance = random.Random(3)
    for _ in range(60):
        state, stack = random_place(automaton, chance)
        mask = state_mask(tables, state)
        for token, text in enumerate(TOKENS, 1):
            if token not in mask.undecided:
                assert (token in mask.allowed) == leads_somewhere(automaton, state, stack, text), text
        assert (END in mask.allowed) == bool(automaton.accepting[state])


def test_openers_are_the_tokens_that_a_full_stack_forbids(masks: StackMasks) -> None:
    automaton = compile_schema("true")
    mask = state_mask(masks.build(automaton), automaton.start)
    full = [0] * automaton.max_depth
    forbidden = {
        token
        for token, text in enumerate(TOKENS, 1)
        if token in mask.allowed and not leads_somewhere(automaton, automaton.start, full, text)
    }
    assert forbidden == mask.openers
    assert forbidden


def test_the_stack_decides_on_few_tokens_between_members(masks: StackMasks) -> None:
    schema = {"properties": {"a": {"type": "null"}}, "additionalProperties": False}
    automaton = compile_schema(schema)
    state, stack = automaton.start, list[int]()
    for byte in b'{"a":null':
        state = automaton.step(state, stack, byte)
    undecided = state_mask(masks.build(automaton), state).undecided
    assert all(TOKENS[token - 1].startswith(b"}") for token in undecided)


@pytest.mark.parametrize("text", [b'{"ab":1', b'{"ab":1,', b'{"b":"a'])
def test_the_stack_does_not_decide_on_tokens_that_every_set_forbids(text: bytes, masks: StackMasks) -> None:
    schema = {"properties": {"ab": {}, "aname": {}, "b": {}}, "additionalProperties": False}
    automaton = compile_schema(schema, property_order="any")
    stack: list[int] = []
    state = automaton.walk(automaton.start, stack, text)
    undecided = [TOKENS[token - 1] for token in state_mask(masks.build(automaton), state).undecided]
    within = [token for token in undecided if b"}" not in token]
    assert within
    for token in within:
        assert any(leads_somewhere(automaton, state, [*stack[:-1], seen], token) for seen in range(8)), token


def strings(names: int) -> StackAutomaton:
    properties = {f"p{i}": {"type": "string"} for i in range(names)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return compile_schema(schema)


def test_strings_share_their_masks_within_and_between_schemas(masks: StackMasks) -> None:
    one, many = masks.build(strings(1)), masks.build(strings(40))
    assert {mask.tobytes() for mask in one.masks} <= {mask.tobytes() for mask in many.masks}
    assert len(many.masks) < len(one.masks) + 5


def test_declared_names_beside_free_ones_cost_only_their_differences(masks: StackMasks) -> None:
    few, many = (
        masks.build(compile_schema({"properties": {f"name{i}": {"type": "null"} for i in range(count)}}))
        for count in (20, 40)
    )
    states = len(many.states) - len(few.states)
    assert states > 40
    assert mask_bytes(many) - mask_bytes(few) < 200 * states


def mask_bytes(tables: AutomatonTables) -> int:
    return tables.masks.nbytes + tables.list_tokens.nbytes


def texts_of(tries: TokenTries, which: int) -> dict[int, bytes]:
    """The texts of a trie's tokens, read node by node."""
    texts = dict[int, bytes]()
    pending = [(node, bytes([byte])) for byte, node in enumerate(tries.roots[which].tolist()) if node >= 0]
    for node, path in pending:
        tokens = tries.tokens[tries.token_starts[node] : tries.token_starts[node + 1]].tolist()
        texts |= dict.fromkeys(tokens, path)
        below = slice(tries.first_child[node], tries.first_child[node + 1])
        children, bytes_ = tries.child[below].tolist(), tries.child_byte[below].tolist()
        assert [node + 1, *tries.ends[children]] == [*children, tries.ends[node]]
        pending += [(child, path + bytes([byte])) for child, byte in zip(children, bytes_, strict=True)]
    return texts


SPELLINGS = st.lists(st.binary(min_size=1, max_size=3) | st.sampled_from([b'a"', b"a" * 32, b"a" * 33]))


@given(SPELLINGS)
def test_a_vocabularys_tries_spell_each_token_once(texts: list[bytes]) -> None:
    tries = make_tries([(text, token) for token, text in enumerate(texts)], (0,), 100)
    quote_free, other = texts_of(tries, QUOTE_FREE), texts_of(tries, OTHER)
    assert quote_free | other == dict(enumerate(texts))
    assert not quote_free.keys() & other.keys()
    assert all(len(text) <= MAX_QUOTE_FREE_BYTES and QUOTE not in text for text in quote_free.values())


def tables_of(walker: Walker, walked: WalkedStates) -> list[NDArray[np.generic]]:
    """The used parts of the tables."""
    edges, tokens, *_ = walker.edges.used.tolist()
    met = walked.met[: walked.met_ends[-1]]
    found = [walker.edges.ends[:edges], walker.edges.tokens[:tokens]]
    return [*found, met, walked.met_ends, walked.costly]


def test_walks_that_run_out_of_capacity_find_the_same_with_more() -> None:
    automaton = compile_schema({"type": "array", "items": {"maxLength": 70}})
    machine = Machine(automaton.transitions, automaton.class_of_byte, automaton.actions, automaton.returns)
    tries = make_tries([(text, token) for token, text in enumerate(TOKENS)], (len(TOKENS),), len(TOKENS) + 1)
    states = np.arange(len(automaton.accepting), dtype=np.int32)
    ample, scant = (Walker(tries, machine, make_buffers(len(TOKENS) + 1)) for _ in range(2))
    configurations = scant.context.configurations
    parts = configurations.parts._replace(rows=configurations.parts.rows[:3])
    few = configurations._replace(rows=configurations.rows[:3], parts=parts)
    scant.context = scant.context._replace(configurations=few)
    limits = Limits(1024, 1024)
    found = [walker.states(states, automaton.accepting, states < 0, limits) for walker in (ample, scant)]
    assert len(scant.context.configurations.rows) > 3
    one, other = (tables_of(walker, walked) for walker, walked in zip((ample, scant), found, strict=True))
    assert len(one[1])
    for table, same in zip(one, other, strict=True):
        assert np.array_equal(table, same)
