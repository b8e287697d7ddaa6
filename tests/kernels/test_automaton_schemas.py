"""Compiled JSON schemas in the pool: the kernels mask and step them as the compiler's automaton says."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from arbora.grammars.machine.stack_automaton import CLOSE, COUNT, COUNT_CALL, DROP, FULL, NEED, OPEN, SEE
from arbora.grammars.masks.stack import StackMasks
from arbora.grammars.masks.token_trie import Spellings, build_tries
from arbora.grammars.schema import SchemaCompiler
from arbora.grammars.service.automaton import Automaton, with_masks
from arbora.kernels.automaton import AutomatonPool, SlotRegisters, Tables
from arbora.kernels.automaton import cpu as automaton_cpu
from arbora.kernels.automaton import cuda as automaton_triton
from arbora.kernels.automaton.layout import DEPTH, STACK, STATE
from arbora.kernels.sampling.reference import unpack_bits
from arbora.runtime.grammar_spec import PropertyOrder
from triton_device import DEVICE

PIECES = ['"', '":', '","', '"}', '"]', "}}", "]}", "]]", "[[", '{"', '[{"', "},", "true", "null", "aa", "é"]
PIECES += ['":[', '"a":', '","b":', '{"a":{"a":', "a" * 12, '\\"', "\\u00", "12", "-1", "b", '":{']
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


FREE = {name: {"enum": [True, None]} for name in ("a", "b", "aa")}
CASES = {
    "any value": Case(True),
    "lists of lists": Case({"type": "array", "items": {"$ref": "#"}}),
    "long strings": Case(
        {"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 400}},
        (COUNT, COUNT_CALL),
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
}


@cache
def masks() -> StackMasks:
    return StackMasks(build_tries(Spellings(OFFSETS, DATA, (END,), MODEL_VOCAB)))


@cache
def compiled(name: str) -> Automaton:
    case = CASES[name]
    machine = SchemaCompiler().compile(json.dumps(case.schema), property_order=case.order)
    assert set(case.actions) <= set(machine.actions[:, 0].tolist())
    automaton = with_masks(name, machine, masks())
    assert len(automaton.masks.masks) < 30 and automaton.masks.opener_counts.any()
    return automaton


def pool_of(automaton: Automaton, device: torch.device) -> AutomatonPool:
    pool = AutomatonPool(device, SlotRegisters(2, MODEL_VOCAB, device), OFFSETS, DATA, [END])
    tables = Tables(
        class_of_byte=automaton.machine.class_of_byte,
        row_starts=automaton.rows.row_starts,
        default_state=automaton.rows.default_state,
        entries=automaton.rows.entries,
        owners=automaton.rows.owners,
        mask_of_state=automaton.masks.mask_of_state,
        masks=automaton.masks.masks,
        lists_of_state=automaton.masks.lists_of_state,
        list_offsets=automaton.masks.list_offsets,
        list_tokens=automaton.masks.list_tokens,
        opener_counts=automaton.masks.opener_counts,
        actions=automaton.machine.actions,
        returns=automaton.machine.returns,
    )
    pool.load(1, tables)
    return pool


def after(automaton: Automaton, state: int, stack: list[int], token: int) -> tuple[int, list[int]]:
    stack = list(stack)
    for byte in b"" if token == END else TEXTS[token]:
        state = automaton.machine.step(state, stack, byte) if state >= 0 else state
    return state, stack


def allowed(automaton: Automaton, state: int, stack: list[int]) -> list[int]:
    tokens = [token for token in range(1, len(TEXTS)) if after(automaton, state, stack, token)[0] >= 0]
    return [END, *tokens] if automaton.machine.accepting[state] else tokens


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_the_pool_has_the_masks_and_stacks_of_the_compilers_automaton(name: str, seed: int) -> None:
    chance = np.random.default_rng(seed)
    automaton = compiled(name)
    pool, interpreted = pool_of(automaton, torch.device("cpu")), pool_of(automaton, DEVICE)
    state, stack = automaton.machine.start, list[int]()
    pool.enter(0, 1, state)
    rows = pool.rows(np.array([0], np.int32))
    for step in range(120):
        expected = allowed(automaton, state, stack)
        mask = pool.mask(rows)
        assert (
            unpack_bits(mask.bits[int(mask.index[0])], MODEL_VOCAB).nonzero().flatten().tolist() == expected
        )
        if step % 15 == 0:
            interpreted.enter(0, 1, state, stack)
            bits = interpreted._registers.masks
            index = automaton_triton.mask(interpreted.rows(np.array([0], np.int32)), bits)
            assert torch.equal(bits[int(index[0])].cpu(), mask.bits[int(mask.index[0])])
        deepening = [token for token in expected if TEXTS[token][-1:] in (b"[", b"{", b":")]
        some = deepening if deepening and chance.random() < seed / 2 else expected
        assert expected, "no way on"
        token = int(chance.choice(some))
        if token == END:
            return
        state, stack = after(automaton, state, stack, token)
        automaton_cpu.advance(rows, torch.tensor([token], dtype=torch.int32))
        own = rows.registers[0].tolist()
        assert pool.grammar_states([1], np.array(own[STATE : STATE + 1])).tolist() == [state]
        assert own[STACK : STACK + own[DEPTH]] == stack
