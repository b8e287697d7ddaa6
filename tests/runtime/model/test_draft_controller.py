"""How many drafts are computed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from arbora.kernels.common.draft_choice import KINDS_OF_SOURCE, MIN_GAIN, choose_drafts
from arbora.kernels.common.drafts import Drafts
from arbora.runtime.model.drafts import DraftController
from arbora.runtime.model.drafts.controller import FIRST_SLOPE, MAX_TOKENS, StepCosts
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

Times = dict[int, float]
"""milliseconds of steps by their tokens"""
FLAT = dict.fromkeys(range(1, 40), 10.0)
STEEP = {tokens: 10.0 * tokens for tokens in range(1, 40)}


def controller_of(times: Times) -> DraftController:
    """A controller that has seen some steps of each size."""
    controller = DraftController(slots=4)
    observe(controller.costs, times, steps=8)
    return controller


def rising(slope: float) -> Times:
    """Each token after the first adds `slope` to a step of 10 ms."""
    return {tokens: 10.0 + slope * (tokens - 1) for tokens in range(1, 40)}


def observe(costs: StepCosts, times: Times, steps: int = 400) -> None:
    """Steps of one row."""
    for _ in range(steps):
        for tokens, milliseconds in times.items():
            costs.observe(tokens, tokens - 1, milliseconds)


def ints(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def drafts(*counts: int, matched: int = 8, source: int = 0, slot: int = 0) -> Drafts:
    of_slots, slots = np.full(len(counts), 1, np.int32), slot + np.arange(len(counts), dtype=np.int32)
    tokens = np.arange(sum(counts), dtype=np.int32)
    return Drafts(slots, ints(counts), tokens, source * of_slots, matched * of_slots)


def chosen(controller: DraftController, *counts: int, **fields: int) -> list[int]:
    found = controller.choose(drafts(*counts, **fields), len(counts), len(counts))
    return [0] * len(counts) if found is None else found.counts.tolist()


def learn(controller: DraftController, right: int, of: int, times: int = 60, **fields: int) -> None:
    """Drafts of `of` tokens, of which the first `right` are sampled, and then another."""
    for _ in range(times):
        proposed = drafts(of, **fields)
        tokens = [*proposed.tokens[:right].tolist(), 99]
        controller.learn(proposed, ints([len(tokens)]), ints(tokens))


def test_drafts_that_cost_nothing_are_computed_and_dear_ones_are_not() -> None:
    assert chosen(controller_of(FLAT), 8, 3) == [8, 3]
    assert chosen(controller_of(STEEP), 8, 3) == [0, 0]


def test_drafts_are_computed_before_any_step_was_measured() -> None:
    assert chosen(DraftController(slots=4), 8) != [0]


def test_dear_drafts_are_computed_once_they_turn_out_to_be_right() -> None:
    controller = controller_of(rising(5.0))
    assert chosen(controller, 12) == [0]
    learn(controller, right=12, of=12)
    assert chosen(controller, 12) == [12]
    assert chosen(controller, 12, source=1) == [0]
    assert chosen(controller, 12, matched=4) == [0]


def test_wrong_drafts_are_given_up_and_computed_again_when_they_would_have_been_right() -> None:
    controller = controller_of(rising(2.5))
    learn(controller, right=12, of=12)
    learn(controller, right=0, of=12)
    assert chosen(controller, 12) == [0]
    for _ in range(60):  # only one token is sampled, because no draft is computed
        controller.learn(drafts(12), ints([1]), ints([0]))
    assert chosen(controller, 12) != [0]


def test_a_draft_ends_where_its_tokens_become_unlikely() -> None:
    controller = controller_of(rising(0.4))
    learn(controller, right=3, of=12)
    assert chosen(controller, 12) == [3]


def test_slots_with_likelier_drafts_get_more_of_a_dear_step() -> None:
    controller = controller_of(rising(1.0))
    learn(controller, right=12, of=12, source=0)
    learn(controller, right=1, of=12, source=1)
    both = Drafts(ints([0, 1]), ints([6, 6]), np.zeros(12, np.int32), ints([0, 1]), ints([8, 8]))
    found = controller.choose(both, 2, 2)
    assert found is not None
    assert found.counts[0] == 6
    assert found.counts[1] <= 1


def count_steps_with_drafts(controller: DraftController, steps: int) -> int:
    return sum(chosen(controller, 4) != [0] for _ in range(steps))


def test_drafts_that_are_not_worth_their_time_are_tried_again_ever_more_rarely() -> None:
    controller = controller_of(STEEP)
    first, later = count_steps_with_drafts(controller, 400), count_steps_with_drafts(controller, 4000)
    assert 1 <= first <= 4
    assert 5 <= later <= 10


def test_a_size_that_seemed_slow_is_used_again_once_trials_find_it_fast() -> None:
    controller = controller_of(FLAT | dict.fromkeys(range(2, 40), 100.0))
    learn(controller, right=4, of=4)
    observe(controller.costs, {1: 10.0}, steps=600)
    tried = 0
    for _ in range(5000):
        (count,) = chosen(controller, 4)
        controller.costs.observe(1 + count, count, 10.0)
        tried += count > 0
    assert tried > 2500


@pytest.mark.parametrize("slower", [0.3, 3.0])
def test_a_machine_that_becomes_slower_or_faster_changes_no_choice(slower: float) -> None:
    controller, times = controller_of(rising(2.5)), rising(2.5)
    learn(controller, right=4, of=4)
    before = chosen(controller, 12)
    observe(controller.costs, {1: slower * times[1]}, steps=1000)
    assert chosen(controller, 12) == before


def test_the_time_of_steps_is_learned() -> None:
    controller = controller_of(FLAT)
    learn(controller, right=4, of=4)
    assert chosen(controller, 4) == [4]
    observe(controller.costs, {1: 10.0, 2: 80.0, 3: 80.0, 4: 80.0, 5: 80.0})
    assert chosen(controller, 4) == [0]


def test_a_reply_that_repeats_nothing_gets_no_drafts_soon() -> None:
    controller = controller_of(rising(3.0))
    for _ in range(60):
        learn(controller, right=4, of=4, times=2, slot=1)
        learn(controller, right=0, of=4, times=2, slot=2)
    assert chosen(controller, 4, slot=1) == [4]
    learn(controller, right=0, of=4, times=2, slot=3)
    assert chosen(controller, 4, slot=3) == [0]


def test_steps_with_drafts_have_few_sizes() -> None:
    controller, found = controller_of(FLAT), set()
    learn(controller, right=12, of=12)
    for counts in product(range(13), repeat=2):
        numbers = chosen(controller, *counts)
        found.add(2 + sum(numbers))
        assert sum(counts) - sum(numbers) <= max(1, sum(counts) // 5)
    assert found == {*range(2, 10), 11, 13, 15, 17, 21, 25}
    beside_a_chunk = controller.choose(drafts(9), 300, 1)
    assert beside_a_chunk is not None and beside_a_chunk.counts.tolist() == [9]


def test_steps_of_other_rows_than_those_before_do_not_count() -> None:
    costs = StepCosts()
    observe(costs, {1: 10.0, 4: 20.0})
    for tokens in (2, 1, 3, 1) * 50:
        costs.observe(tokens, 0, 50.0)
    assert costs.by_tokens[4] / costs.by_tokens[1] == pytest.approx(2.0)


def test_the_first_step_of_a_size_does_not_count() -> None:
    costs = StepCosts()
    observe(costs, {1: 10.0, 4: 500.0}, steps=1)
    observe(costs, {1: 10.0, 4: 20.0}, steps=2)
    assert costs.by_tokens[4] / costs.by_tokens[1] == pytest.approx(2.0)


def test_one_slow_step_does_not_count_as_the_time_of_its_size() -> None:
    costs = StepCosts()
    observe(costs, {1: 10.0, 4: 20.0})
    costs.observe(4, 3, 5000.0)
    assert costs.by_tokens[4] / costs.by_tokens[1] < 2.2


def test_sizes_that_were_not_measured_follow_from_their_neighbours() -> None:
    costs = StepCosts()
    observe(costs, {2: 11.0, 4: 24.0}, steps=2)
    slope = costs.by_tokens[3:] / (1.0 + FIRST_SLOPE * np.arange(3, MAX_TOKENS + 1))
    assert costs.by_tokens[1] < costs.by_tokens[2]
    assert costs.by_tokens[4] / costs.by_tokens[2] == pytest.approx(24 / 11)
    assert costs.by_tokens[2] < costs.by_tokens[3] < costs.by_tokens[4]
    assert slope[2:] == pytest.approx(slope[1])
    costs.observe(MAX_TOKENS + 1, 0, 1.0)


@settings(max_examples=200, deadline=None)
@given(
    counts=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    rates=st.lists(st.floats(0.0, 1.0), min_size=9, max_size=9),
    growth=st.lists(st.floats(0.0, 2.0), min_size=12, max_size=12),
)
def test_no_other_numbers_of_drafts_sample_more_tokens_a_second(
    counts: list[int], rates: list[float], growth: list[float]
) -> None:
    rows, outcomes = len(counts), np.ones((3 * KINDS_OF_SOURCE, 3, 2))
    of_slots = outcomes[::KINDS_OF_SOURCE, :, 1]  # each slot has another source
    of_slots[:] = np.array(rates).reshape(3, 3)
    costs = np.cumsum([0.0, *([1.0] * rows), *growth])[: rows + 10]
    slots = np.arange(rows, dtype=np.int32)
    proposed = Drafts(slots, ints(counts), np.zeros(sum(counts), np.int32), slots, np.zeros_like(slots))

    def speed(numbers: Sequence[int]) -> float:
        kept = sum(of_slots[slot, :number].cumprod().sum() for slot, number in enumerate(numbers))
        return float((rows + kept) / costs[rows + sum(numbers)])

    own = np.zeros((rows, 2))
    found = choose_drafts(proposed, outcomes, own, costs, rows, rows, False).tolist()
    choices = product(*(range(count + 1) for count in counts))
    most = max(speed(numbers) for numbers in choices if rows + sum(numbers) not in (10, 12))
    if any(found):
        assert speed(found) == pytest.approx(most)
    else:
        assert most <= MIN_GAIN * speed(found) * (1 + 1e-9)
