"""The pool of automata: rows at the edges of the stack, dead rows, loading and dropping, its memory."""

import numpy as np
import pytest
import torch
from arbora.kernels.automaton import AutomatonPool
from arbora.kernels.automaton import cpu as automaton_cpu
from arbora.kernels.automaton.layout import STATES
from arbora.kernels.automaton.pool import Arena
from arbora.kernels.sampling import sample
from arbora.kernels.sampling.batch import NOTHING_ALLOWED
from arbora.runtime.automaton_format import DEAD, NO_AUTOMATON, POP, PUSH, STACK_DEPTH
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from interpreted_triton import DEVICE
from pooled_automata import CPU, allowed, configurations, empty_pool, entered, int32, pool_of, triton_mask
from sampling_cases import batch
from stack_automata import (
    EOS,
    MODEL_VOCAB,
    VOCABULARY,
    Configuration,
    Grammar,
    Lists,
    random_configurations,
    random_grammar,
    tables,
)


def brackets() -> Grammar:
    """Balanced a … b; c only outside, where the text may end. Tokens with a or b are decided by the stack."""
    classes = np.zeros(256, np.uint8)
    classes[ord("a")], classes[ord("b")], classes[ord("c")] = 1, 2, 3
    masks = np.zeros((2, -(-MODEL_VOCAB // 32)), np.int32)
    words = masks.view(np.uint32)
    for token in (VOCABULARY.index(b"c"), VOCABULARY.index(b"cc"), VOCABULARY.index(b"ccc"), EOS):
        words[0, token // 32] |= np.uint32(1 << token % 32)
    context = [t for t, text in enumerate(VOCABULARY) if text and not text.strip(b"abc") and text.strip(b"c")]
    made = tables(
        classes,
        np.array([[-1, -2, -1, 0], [-1, -3, -4, -1]]),
        [0, 1],
        masks,
        actions=[(PUSH, 1, 0, 1), (PUSH, 1, 1, 1), (POP, 0, 0, -2)],
        returns=[0, 1],
        lists=Lists([(0, 0, 1), (0, 0, 1)], [(context, [])]),
    )
    return Grammar(made)


def test_a_token_may_pop_and_push_again() -> None:
    pool = pool_of(brackets().tables)
    rows = entered(pool, [(0, Configuration(1, (0,)))])
    automaton_cpu.advance(rows, int32([VOCABULARY.index(b"bca")]))
    assert configurations(rows) == [Configuration(1, (0,))]


def test_a_pop_of_an_empty_stack_is_masked_and_leads_nowhere() -> None:
    pool = pool_of(brackets().tables)
    rows = entered(pool, [(0, Configuration(0)), (0, Configuration(1, (0,)))])
    bb = VOCABULARY.index(b"bb")
    assert all(bb not in allowed(pool.mask(rows), row) for row in (0, 1))
    assert automaton_cpu.advance(rows, int32([bb, bb])).tolist() == [DEAD, DEAD]


def test_a_push_onto_a_full_stack_is_masked_and_leads_nowhere() -> None:
    pool = pool_of(brackets().tables)
    full = Configuration(1, (0, *[1] * (STACK_DEPTH - 1)))
    rows = entered(pool, [(0, full), (0, Configuration(1, full.stack[1:])), (0, full)])
    a, aa, ba = (VOCABULARY.index(text) for text in (b"a", b"aa", b"ba"))
    masks = [set(allowed(pool.mask(rows), row)) & {a, aa, ba} for row in range(3)]
    assert masks == [{ba}, {a, ba}, {ba}]
    after = automaton_cpu.advance(rows, int32([a, a, ba])).tolist()
    assert [state == DEAD for state in after] == [True, False, False]


def test_end_of_sequence_and_tokens_without_bytes_leave_the_row() -> None:
    pool = pool_of(brackets().tables)
    placed = [(0, Configuration(0)), (0, Configuration(1, (0, 1)))]
    rows = entered(pool, placed)
    automaton_cpu.advance(rows, int32([EOS, VOCABULARY.index(b"")]))
    assert configurations(rows) == [at for _, at in placed]


def test_a_row_without_an_automaton_has_no_mask_and_stays() -> None:
    slots = np.array([3, 4], np.int32)
    for device, mask in ((CPU, AutomatonPool.mask), (DEVICE, triton_mask)):
        pool = pool_of(brackets().tables, device=device)
        pool.enter(3, 0, 0)
        pool.leave(3)
        assert mask(pool, pool.rows(slots)).index.tolist() == [-1, -1]
    pool = pool_of(brackets().tables)
    rows = pool.rows(slots)
    assert automaton_cpu.advance(rows, int32([0, 1])).tolist() == [NO_AUTOMATON] * 2


def test_a_dead_row_is_flagged_when_sampled_and_stays_dead() -> None:
    pool = pool_of(brackets().tables)
    rows = entered(pool, [(0, Configuration(0)), (0, Configuration(0)), (0, Configuration(-1))])
    automaton_cpu.advance(rows, int32([VOCABULARY.index(text) for text in (b"b", b"c", b"c")]))
    sampled = sample(torch.zeros(3, MODEL_VOCAB), batch(3, mask=pool.mask(rows), automata=rows))
    assert sampled.bad.tolist() == [NOTHING_ALLOWED, 0, NOTHING_ALLOWED]
    assert sampled.states is not None
    assert (sampled.states == DEAD).tolist() == [True, False, True]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9999), st.integers(0, 999))
def test_sampled_tokens_never_leave_the_grammar(grammar_seed: int, seed: int) -> None:
    grammar = random_grammar(grammar_seed)
    pool, at = pool_of(grammar.tables), Configuration(0)
    rows = entered(pool, [(0, at)])
    for position in range(24):
        made = batch(seed=seed, position=position, mask=pool.mask(rows), automata=rows)
        sampled = sample(torch.zeros(1, MODEL_VOCAB), made)
        assert not sampled.bad[0]
        at = grammar.after(at, int(sampled.tokens[0]))
        assert at.state >= 0
        assert configurations(rows) == [at]


class LoadedGrammars(RuleBasedStateMachine):
    """Loading and dropping in any order: the loaded grammars step correctly, and no space leaks."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = empty_pool()
        self.loaded: dict[int, Grammar] = {}
        self.next = 0
        self.free_at_first = self.free_rows()

    def free_rows(self) -> list[int]:
        return [sum(end - start for start, end in arena._holes) for arena in self.pool._arenas.values()]

    @rule(seed=st.integers(0, 999), stack=st.booleans())
    def add(self, seed: int, stack: bool) -> None:
        grammar = random_grammar(seed, stack)
        self.pool.load(self.next, grammar.tables)
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
            at = random_configurations(grammar, number, 1)[0]
            expected = [token for token in range(MODEL_VOCAB) if grammar.allows(at, token)]
            assert allowed(self.pool.mask(entered(self.pool, [(number, at)])), 0) == expected
            for token in expected[::9]:
                rows = entered(self.pool, [(number, at)])
                automaton_cpu.advance(rows, int32([token]))
                assert configurations(rows) == [grammar.after(at, token)]

    def teardown(self) -> None:
        for number in list(self.loaded):
            self.pool.drop(number)
        assert all(now >= first for now, first in zip(self.free_rows(), self.free_at_first, strict=True))
        assert len(self.pool._arenas[STATES]._holes) == 1


TestLoadedGrammars = LoadedGrammars.TestCase
TestLoadedGrammars.settings = settings(max_examples=15, stateful_step_count=20, deadline=None)


def test_an_arena_reuses_freed_rows_before_it_grows() -> None:
    arena = Arena(8, (), torch.int32, torch.device("cpu"))
    first = arena.add(np.arange(5, dtype=np.int32))
    arena.add(np.arange(3, dtype=np.int32))
    arena.free(first, 5)
    assert arena.add(np.full(4, 7, np.int32)) == first
    assert len(arena.tensor) == 8


def test_an_arena_keeps_its_rows_when_it_grows() -> None:
    arena = Arena(4, (2,), torch.int32, torch.device("cpu"))
    rows = np.arange(6, dtype=np.int32).reshape(3, 2)
    at = arena.add(rows)
    more = arena.add(np.full((50, 2), 9, np.int32))
    assert arena.tensor[at : at + 3].tolist() == rows.tolist()
    assert (arena.tensor[more : more + 50] == 9).all()


def test_a_grammar_is_loaded_under_an_unused_id_only() -> None:
    pool = pool_of(random_grammar(1).tables)
    with pytest.raises(AssertionError):
        pool.load(0, random_grammar(2).tables)
