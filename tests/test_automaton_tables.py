"""Pooled byte automata: masks and steps against stepping in Python."""

from dataclasses import dataclass

import interpreted_triton  # noqa: F401
import numpy as np
import pytest
import torch
from arbora.kernels.automaton import DEAD, NO_AUTOMATON, AutomatonPool
from arbora.kernels.automaton import cuda as automaton_triton
from arbora.kernels.automaton.arena import Arena
from arbora.kernels.sampling import sample
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sampling_cases import batch

VOCABULARY = [b"a", b"b", b"ab", b"ba", b"abc", b"cc", b"", b"\xff", b"bbbbb", b"</s>"]
EOS = VOCABULARY.index(b"</s>")
WORDS = 1


@dataclass
class Grammar:
    class_of_byte: "np.ndarray[tuple[int], np.dtype[np.uint8]]"
    transitions: "np.ndarray[tuple[int, int], np.dtype[np.int32]]"
    mask_of_state: "np.ndarray[tuple[int], np.dtype[np.int32]]"
    masks: "np.ndarray[tuple[int, int], np.dtype[np.int32]]"

    def step(self, state: int, token: int) -> int:
        """The state after a token, -1 for none."""
        for byte in b"" if token == EOS else VOCABULARY[token]:
            if state >= 0:
                state = int(self.transitions[state, self.class_of_byte[byte]])
        return state

    def allows(self, state: int, token: int) -> bool:
        return bool(self.masks[self.mask_of_state[state], token // 32] >> token % 32 & 1)


def random_grammar(seed: int) -> Grammar:
    rng = np.random.default_rng(seed)
    states, classes = int(rng.integers(1, 9)), int(rng.integers(1, 5))
    grammar = Grammar(
        rng.integers(0, classes, 256).astype(np.uint8),
        rng.integers(-1, states, (states, classes)).astype(np.int32),
        rng.integers(0, states, states).astype(np.int32),
        np.zeros((states, WORDS), np.int32),
    )
    # A mask for each state, shuffled, so that mask numbers and states differ.
    grammar.mask_of_state = rng.permutation(states).astype(np.int32)
    for state in range(states):
        allowed = [token for token in range(len(VOCABULARY)) if grammar.step(state, token) >= 0]
        grammar.masks[grammar.mask_of_state[state], 0] = sum(1 << token for token in allowed)
    return grammar


def empty_pool() -> AutomatonPool:
    offsets = np.cumsum([0, *map(len, VOCABULARY)], dtype=np.int32)
    return AutomatonPool("cpu", offsets, np.frombuffer(b"".join(VOCABULARY), np.uint8), [EOS])


def load(pool: AutomatonPool, number: int, grammar: Grammar) -> None:
    parts = (grammar.class_of_byte, grammar.transitions, grammar.mask_of_state, grammar.masks)
    pool.load(number, *parts)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 999), min_size=1, max_size=4))
def test_steps_and_masks_are_those_of_each_rows_grammar(seeds: list[int]) -> None:
    pool = empty_pool()
    grammars = [random_grammar(seed) for seed in seeds]
    for number, grammar in enumerate(grammars):
        load(pool, number, grammar)
    rows = [
        (number, state, token)
        for number, grammar in enumerate(grammars)
        for state in range(len(grammar.transitions))
        for token in range(len(VOCABULARY))
    ]
    states = int32(*(pool.pooled_state(number, state) for number, state, _ in rows))
    after = pool.advance(states, int32(*(token for _, _, token in rows)))
    mask = pool.mask(states)
    for row, (number, state, token) in enumerate(rows):
        expected = grammars[number].step(state, token)
        assert pool.grammar_state(number, int(after[row])) == expected
        bits = mask.bits[int(mask.index[row])]
        assert bool(int(bits[token // 32]) >> token % 32 & 1) == grammars[number].allows(state, token)


def test_triton_steps_and_masks_as_the_cpu() -> None:
    pool = empty_pool()
    grammars = [random_grammar(seed) for seed in (3, 4)]
    for number, grammar in enumerate(grammars):
        load(pool, number, grammar)
    starts = [pool.pooled_state(n, s) for n, g in enumerate(grammars) for s in range(len(g.transitions))]
    states = int32(NO_AUTOMATON, DEAD, *starts)
    spans, token_bytes = pool._spans, pool._bytes
    tables = (pool._states.tensor, pool._class_maps.tensor, pool._transitions.tensor)
    assert torch.equal(automaton_triton.mask_index(states, tables[0]), pool.mask_index(states))
    for token in range(len(VOCABULARY)):
        tokens = torch.full_like(states, token)
        got = automaton_triton.advance(states, tokens, spans, token_bytes, *tables)
        assert torch.equal(got, pool.advance(states, tokens))


def test_end_of_sequence_and_tokens_without_bytes_leave_the_state() -> None:
    pool = empty_pool()
    load(pool, 0, random_grammar(1))
    state = pool.pooled_state(0, 0)
    after = pool.advance(int32(state, state), int32(EOS, VOCABULARY.index(b"")))
    assert after.tolist() == [state, state]


def test_a_row_without_an_automaton_has_no_mask_and_stays() -> None:
    pool = empty_pool()
    assert pool.mask_index(int32(NO_AUTOMATON)).tolist() == [-1]
    assert pool.advance(int32(NO_AUTOMATON), int32(0)).tolist() == [NO_AUTOMATON]


def test_a_dead_row_is_flagged_when_sampled() -> None:
    pool = empty_pool()
    states = int32(DEAD, NO_AUTOMATON)
    sampled = sample(torch.zeros(2, len(VOCABULARY)), batch(2, mask=pool.mask(states)))
    assert sampled.bad.tolist() == [True, False]
    assert pool.advance(states, sampled.tokens)[0] == DEAD


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), st.integers(0, 999))
def test_sampled_tokens_never_leave_the_grammar(grammar_seed: int, seed: int) -> None:
    pool = empty_pool()
    grammar = random_grammar(grammar_seed)
    load(pool, 5, grammar)
    states, expected = int32(pool.pooled_state(5, 0)), 0
    for position in range(12):
        made = batch(seed=seed, position=position, mask=pool.mask(states))
        sampled = sample(torch.zeros(1, len(VOCABULARY)), made)
        assert not sampled.bad[0]
        states = pool.advance(states, sampled.tokens)
        expected = grammar.step(expected, int(sampled.tokens[0]))
        assert expected >= 0
        assert pool.grammar_state(5, int(states[0])) == expected


class LoadedGrammars(RuleBasedStateMachine):
    """Loading and dropping in any order: what is loaded steps rightly, and no space is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = empty_pool()
        self.loaded: dict[int, Grammar] = {}
        self.next = 0
        self.free_at_first = self.free_rows()

    def free_rows(self) -> list[int]:
        pool = self.pool
        arenas = (pool._states, pool._transitions, pool._masks, pool._class_maps)
        return [arena.free_rows for arena in arenas]

    @rule(seed=st.integers(0, 999))
    def add(self, seed: int) -> None:
        grammar = random_grammar(seed)
        load(self.pool, self.next, grammar)
        self.loaded[self.next] = grammar
        self.next += 1

    @precondition(lambda self: self.loaded)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.loaded)))
        self.pool.drop(number)
        del self.loaded[number]

    @invariant()
    def steps_are_right(self) -> None:
        for number, grammar in self.loaded.items():
            for token in range(len(VOCABULARY)):
                after = self.pool.advance(int32(self.pool.pooled_state(number, 0)), int32(token))
                assert self.pool.grammar_state(number, int(after[0])) == grammar.step(0, token)

    def teardown(self) -> None:
        for number in list(self.loaded):
            self.pool.drop(number)
        assert all(now >= first for now, first in zip(self.free_rows(), self.free_at_first, strict=True))
        assert len(self.pool._states._holes) == 1


TestLoadedGrammars = LoadedGrammars.TestCase
TestLoadedGrammars.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


def test_an_arena_reuses_what_was_freed_before_it_grows() -> None:
    arena = Arena(8, (), torch.int32, torch.device("cpu"))
    first = arena.put(np.arange(5, dtype=np.int32))
    arena.put(np.arange(3, dtype=np.int32))
    arena.free(first, 5)
    assert arena.put(np.full(4, 7, np.int32)) == first
    assert len(arena.tensor) == 8


def test_an_arena_keeps_its_rows_when_it_grows() -> None:
    arena = Arena(4, (2,), torch.int32, torch.device("cpu"))
    rows = np.arange(6, dtype=np.int32).reshape(3, 2)
    at = arena.put(rows)
    more = arena.put(np.full((50, 2), 9, np.int32))
    assert arena.tensor[at : at + 3].tolist() == rows.tolist()
    assert (arena.tensor[more : more + 50] == 9).all()


def test_a_grammar_is_loaded_under_an_unused_id_only() -> None:
    pool = empty_pool()
    load(pool, 1, random_grammar(1))
    with pytest.raises(AssertionError):
        load(pool, 1, random_grammar(2))
