"""Masks and both kernels against the reference, `StackAutomaton.step`: random machines and JSON schemas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from arbora.grammars.machine.automaton import Automaton
from arbora.grammars.masks.spellings import Spellings
from arbora.grammars.masks.stack import StackMasks
from arbora.grammars.masks.token_trie import build_tries, make_tries
from arbora.grammars.service.builder import add_masks
from arbora.kernels.automaton import AutomatonPool, SlotRegisters
from arbora.kernels.automaton import cpu as automaton_cpu
from arbora.kernels.automaton.layout import DEPTH, STACK, STATE
from arbora.kernels.sampling import cuda as sampling_triton
from arbora.kernels.sampling.reference import unpack_bits
from arbora.runtime.automaton_format import (
    CLOSE,
    COUNT,
    COUNT_CALL,
    DROP,
    FULL,
    HAVE,
    NEED,
    OPEN,
    OPENERS,
    SEE,
    AutomatonTables,
)
from arbora.runtime.grammar_spec import JsonSpacing, PropertyOrder
from hypothesis import given, settings
from hypothesis import strategies as st
from json_automata import compile_schema
from pooled_automata import CPU, allowed, configurations, entered, int32, pool_of, triton_mask
from sampling_cases import batch
from stack_automata import EOS, VOCABULARY, Configuration, Grammar, random_configurations, random_grammar
from stack_automata import MODEL_VOCAB as RANDOM_VOCAB
from triton_device import DEVICE, moved

RANDOM = StackMasks(
    make_tries([(t, i) for i, t in enumerate(VOCABULARY) if t and i != EOS], (EOS,), RANDOM_VOCAB)
)
TEXTUAL = [token for token, text in enumerate(VOCABULARY) if text and token != EOS]
SEEDS = st.lists(st.integers(0, 9999), min_size=1, max_size=3)


def dead_alike(at: Configuration) -> Configuration:
    return at if at.state >= 0 else Configuration(-1)


def favouring(tokens: Sequence[int]) -> torch.Tensor:
    """Logits from which greedy sampling takes these tokens."""
    logits = torch.zeros(len(tokens), RANDOM_VOCAB)
    logits[range(len(tokens)), list(tokens)] = 1
    return logits


def placed_rows(grammars: Sequence[Grammar], seed: int, each: int) -> list[tuple[int, Configuration]]:
    return [
        (number, at)
        for number, grammar in enumerate(grammars)
        for at in random_configurations(grammar, seed + number, each)
    ]


def compiled_tables(grammar: Grammar, seed: int) -> AutomatonTables:
    """The tables of the grammar's machine, some of whose states are stored as differences from others."""
    states = len(grammar.machine.accepting)
    like = np.random.default_rng(seed).integers(0, states, states).astype(np.int32)
    like = np.where(like[like] == like, like, np.arange(states, dtype=np.int32))
    return RANDOM.build(replace(grammar.machine, like_state=like))


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.booleans())
def test_masks_are_what_each_rows_state_and_stack_allow(seeds: list[int], stack: bool) -> None:
    grammars = [random_grammar(seed, stack) for seed in seeds]
    pool = pool_of(*(grammar.tables for grammar in grammars))
    placed = placed_rows(grammars, seeds[0], 8)
    mask = pool.mask(entered(pool, placed))
    for row, (number, at) in enumerate(placed):
        expected = [token for token in range(RANDOM_VOCAB) if grammars[number].allows(at, token)]
        assert allowed(mask, row) == expected


@settings(max_examples=150, deadline=None)
@given(SEEDS, st.booleans(), st.data())
def test_steps_lead_where_the_bytes_lead(seeds: list[int], stack: bool, data: st.DataObject) -> None:
    grammars = [random_grammar(seed, stack) for seed in seeds]
    pool = pool_of(*(grammar.tables for grammar in grammars))
    placed = placed_rows(grammars, seeds[0], 8)
    rows = entered(pool, placed)
    for _ in range(4):
        tokens = data.draw(
            st.lists(st.integers(0, RANDOM_VOCAB - 1), min_size=len(placed), max_size=len(placed))
        )
        tokens = [min(token, len(VOCABULARY) - 1) for token in tokens]
        states = automaton_cpu.advance(rows, int32(tokens))
        placed = [
            (n, dead_alike(grammars[n].after(at, t))) for (n, at), t in zip(placed, tokens, strict=True)
        ]
        assert configurations(rows) == [at for _, at in placed]
        assert states.tolist() == [at.state for _, at in placed]


@pytest.mark.parametrize("seed", range(6))
def test_triton_masks_and_steps_as_the_cpu(seed: int) -> None:
    grammars = [random_grammar(seed, stack=True), random_grammar(seed + 50, stack=seed % 2 == 0)]
    tables = [grammar.tables for grammar in grammars]
    pool, other = (pool_of(*tables, device=device) for device in (DEVICE, CPU))
    placed = placed_rows(grammars, seed, 4)
    rows, mirrored = entered(pool, placed), entered(other, placed)
    for _ in range(2):
        mask, expected = moved(triton_mask(pool, rows), CPU), other.mask(mirrored)
        assert torch.equal(mask.bits[mask.index.long()], expected.bits[expected.index.long()])
        tokens = np.random.default_rng(seed).integers(0, len(VOCABULARY), len(placed)).tolist()
        made = replace(moved(batch(len(placed), temperature=0)), automata=rows)
        sampled = moved(sampling_triton.sample(moved(favouring(tokens)), made, None), CPU)
        assert sampled.tokens.tolist() == tokens
        assert sampled.states is not None
        assert torch.equal(sampled.states, automaton_cpu.advance(mirrored, int32(tokens)))
        assert configurations(rows) == configurations(mirrored)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 9999), st.booleans())
def test_compiled_masks_allow_the_tokens_that_the_reference_accepts(seed: int, stack: bool) -> None:
    """Except tokens that read the stack below: the counts of random stacks are shorter than a compiler's."""
    grammar = random_grammar(seed, stack)
    pool = pool_of(compiled_tables(grammar, seed))
    placed = placed_rows([grammar], seed, 8)
    mask = pool.mask(entered(pool, placed))
    for row, (_, at) in enumerate(placed):
        settled = [token for token in TEXTUAL if not grammar.looks_below(at.state, token)]
        expected = {token for token in settled if grammar.allows(at, token)}
        assert expected == set(allowed(mask, row)) & set(settled)


@pytest.mark.parametrize("seed", range(3))
def test_triton_reads_compiled_masks_as_the_cpu(seed: int) -> None:
    grammar = random_grammar(seed)
    tables = compiled_tables(grammar, seed)
    pool, other = (pool_of(tables, device=device) for device in (DEVICE, CPU))
    placed = placed_rows([grammar], seed, 6)
    mask, expected = moved(triton_mask(pool, entered(pool, placed)), CPU), other.mask(entered(other, placed))
    assert torch.equal(mask.bits[mask.index.long()], expected.bits[expected.index.long()])


PIECES = ['"', '":', '","', '"}', '"]', "}}", "]}", "]]", "[[", '{"', '[{"', "},", "true", "null", "aa", "é"]
PIECES += ['":[', '"a":', '","b":', '{"a":{"a":', "a" * 12, '\\"', "\\u00", "12", "-1", "b", '":{']
PIECES += [
    " ",
    "\n",
    "\t",
    "  ",
    "    ",
    "\n  ",
    "\n    ",
    "{\n",
    "[\n",
    '" ',
    '": ',
    '", ',
    '": "',
    '",\n',
    '"\n',
    '"\n}',
]
PIECES += [
    ", ",
    ",\n",
    ": ",
    ' "',
    ' {"',
    "{ ",
    "[ ",
    " }",
    " ]",
    "\n}",
    '\n  "',
    '{\n  "',
    "],\n  ",
    "}\n]",
    " :",
    " : ",
]
TEXTS = [b"", *(bytes([byte]) for byte in range(256)), *(piece.encode() for piece in PIECES)]
END = 0
MODEL_VOCAB = 8192  # so large that short masks are lists
OFFSETS = np.cumsum([0, *map(len, TEXTS), *[0] * (MODEL_VOCAB - len(TEXTS))]).astype(np.int32)
DATA = np.frombuffer(b"".join(TEXTS), np.uint8)


class Case(NamedTuple):
    schema: Any
    actions: tuple[int, ...] = ()
    """that the automaton must have"""
    order: PropertyOrder = "schema"
    whitespace: JsonSpacing = "compact"


FREE = {name: {"enum": [True, None]} for name in ("a", "b", "aa")}
CASES = {
    "any value": Case(True),
    "lists of lists": Case({"type": "array", "items": {"$ref": "#"}}),
    "long strings": Case(
        {"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 400}},
        (COUNT, COUNT_CALL),
    ),
    "long strings with a pattern": Case(
        {"type": "array", "items": {"type": "string", "pattern": "^(é|a.|[^aé])+$", "maxLength": 100}},
        (COUNT, COUNT_CALL, DROP),
    ),
    "strings among values": Case({"items": {"maxLength": 90}}, (COUNT, COUNT_CALL, DROP)),
    "any order": Case(
        {"properties": FREE, "required": ["a", "b"], "additionalProperties": False},
        (OPEN, SEE, NEED, CLOSE),
        "any",
    ),
    "more names than a word holds": Case(
        {"properties": {**FREE, **{f"n{i}": True for i in range(40)}}, "required": ["a", "n39"]}
        | {"additionalProperties": False},
        (OPEN, SEE, NEED, CLOSE),
        "any",
    ),
    "names that do not fit": Case(
        {"properties": {"a": {"$ref": "#"}, "b": {"$ref": "#/$defs/deep"}, "aa": {"$ref": "#/$defs/deep"}}}
        | {"additionalProperties": False, "type": "object"}
        | {"$defs": {"deep": {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]}}},
        (OPEN, SEE, NEED, CLOSE, FULL),
        "any",
    ),
    "objects in objects": Case(
        {"properties": {"a": {"$ref": "#"}, "b": {"items": {"$ref": "#"}}}, "required": ["b"]}
        | {"type": "object", "additionalProperties": False},
        (OPEN, SEE, CLOSE),
        "any",
    ),
    "any value with white space": Case(True, whitespace="model"),
    "strings in lists with white space": Case(
        {"items": {"maxLength": 90}}, (COUNT, COUNT_CALL, DROP), whitespace="model"
    ),
    "any order with white space": Case(
        {"properties": {**FREE, "o": {"$ref": "#"}}, "required": ["a", "b"], "additionalProperties": False},
        (OPEN, SEE, NEED, CLOSE, HAVE),
        "any",
        "model",
    ),
    "indented": Case(
        {"properties": {**FREE, "c": {"type": "array"}}, "type": "object"}, (), "schema", "indented"
    ),
}


@cache
def masks() -> StackMasks:
    return StackMasks(build_tries(Spellings(OFFSETS, DATA, (END,), MODEL_VOCAB)))


@cache
def compiled(name: str) -> Automaton:
    case = CASES[name]
    machine = compile_schema(case.schema, whitespace=case.whitespace, property_order=case.order)
    assert set(case.actions) <= set(machine.actions[:, 0].tolist())
    automaton = add_masks(name, machine, masks())
    assert len(automaton.tables.masks) < 30
    assert (
        automaton.tables.lists[:, OPENERS].any() or machine.bottom
    )  # there the stack decides on brackets too
    return automaton


def schema_pool(automaton: Automaton, device: torch.device) -> AutomatonPool:
    pool = AutomatonPool(device, SlotRegisters(2, MODEL_VOCAB, device), OFFSETS, DATA, [END])
    pool.load(1, automaton.tables)
    return pool


def after_token(automaton: Automaton, state: int, stack: list[int], token: int) -> tuple[int, list[int]]:
    stack = list(stack)
    for byte in b"" if token == END else TEXTS[token]:
        state = automaton.machine.step(state, stack, byte) if state >= 0 else state
    return state, stack


def accepted(automaton: Automaton, state: int, stack: list[int]) -> list[int]:
    tokens = [token for token in range(1, len(TEXTS)) if after_token(automaton, state, stack, token)[0] >= 0]
    return [END, *tokens] if automaton.machine.accepting[state] else tokens


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_the_pool_has_the_masks_and_stacks_of_the_compilers_automaton(name: str, seed: int) -> None:
    chance = np.random.default_rng(seed)
    automaton = compiled(name)
    pool, interpreted = schema_pool(automaton, CPU), schema_pool(automaton, DEVICE)
    state, stack = automaton.machine.start, list(automaton.machine.bottom)
    pool.enter(0, 1, state, stack)
    rows = pool.rows(np.array([0], np.int32))
    for step in range(120):
        expected = accepted(automaton, state, stack)
        mask = pool.mask(rows)
        assert (
            unpack_bits(mask.bits[int(mask.index[0])], MODEL_VOCAB).nonzero().flatten().tolist() == expected
        )
        if step % 40 == 13 * seed:
            interpreted.enter(0, 1, state, stack)
            got = triton_mask(interpreted, interpreted.rows(np.array([0], np.int32)))
            assert torch.equal(got.bits[int(got.index[0])].cpu(), mask.bits[int(mask.index[0])])
        deepening = [token for token in expected if TEXTS[token][-1:] in (b"[", b"{", b":")]
        some = deepening if deepening and chance.random() < seed / 2 else expected
        assert expected, "no way on"
        token = int(chance.choice(some))
        if token == END:
            return
        state, stack = after_token(automaton, state, stack, token)
        automaton_cpu.advance(rows, torch.tensor([token], dtype=torch.int32))
        own = rows.registers[0].tolist()
        assert own[STATE] == state
        assert own[STACK : STACK + own[DEPTH]] == stack
