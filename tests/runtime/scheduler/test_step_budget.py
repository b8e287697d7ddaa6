"""The size of prefill chunks follows from the measured time of steps."""

from __future__ import annotations

import pytest
from arbora.runtime.scheduler.budget import (
    FIRST_CHUNK,
    FIRST_RESTORE,
    MAX_CHUNK,
    MIN_CHUNK,
    MIN_RESTORE,
    StepBudget,
)
from hypothesis import given
from hypothesis import strategies as st
from scheduler_bench import settled


def test_before_anything_was_measured_a_chunk_is_small() -> None:
    assert StepBudget(300.0).prefill_tokens(0, False) == FIRST_CHUNK


def test_a_step_with_streams_takes_about_its_time() -> None:
    tokens = settled(base_ms=20.0, token_ms=1.0).prefill_tokens(decode_rows=4, streams_text=True)
    assert 0.75 * 280 <= tokens <= 280


def test_a_step_without_streams_may_take_longer() -> None:
    budget = settled(base_ms=20.0, token_ms=1.0)
    assert budget.prefill_tokens(0, False) > 3 * budget.prefill_tokens(4, True)


def test_a_step_that_delays_only_replies_sent_as_a_whole_may_take_longer() -> None:
    budget = settled(base_ms=20.0, token_ms=1.0)
    streamed, whole, alone = (budget.prefill_tokens(*rows) for rows in ((4, True), (4, False), (0, False)))
    assert 2 * streamed < whole < alone


def test_where_decoding_alone_takes_the_time_prompts_get_as_much() -> None:
    tokens = settled(base_ms=500.0, token_ms=10.0).prefill_tokens(decode_rows=4, streams_text=True)
    assert 0.75 * 50 <= tokens <= 50


def test_a_short_prompt_is_no_evidence_about_long_ones() -> None:
    budget = settled(base_ms=60.0, token_ms=1.0)
    before = budget.prefill_tokens(4, True)
    for _ in range(20):
        budget.observe(20, 65.0)
        budget.observe(70, 75.0)
    assert budget.prefill_tokens(4, True) == before


def test_chunks_of_the_budgets_size_show_that_a_machine_became_faster() -> None:
    budget = settled(base_ms=20.0, token_ms=4.0)
    before = budget.prefill_tokens(4, True)
    for _ in range(60):
        tokens = budget.prefill_tokens(4, True)
        budget.observe(tokens, 20.0 + tokens * 1.0)
    assert budget.prefill_tokens(4, True) > 3 * before


def test_a_machine_that_slows_down_gets_smaller_chunks() -> None:
    budget = settled(base_ms=20.0, token_ms=1.0)
    before = budget.prefill_tokens(4, True)
    for _ in range(20):
        budget.observe(64, 20.0 + 64 * 4.0)
    assert budget.prefill_tokens(4, True) < before / 2


def test_restoring_takes_half_of_a_step_at_most_and_leaves_that_much_less_for_computing() -> None:
    budget = settled(base_ms=20.0, token_ms=1.0)
    assert budget.restored_tokens(decode_rows=4, streams_text=True) == FIRST_RESTORE
    budget.observe_restore(1000, 100.0)
    assert budget.restored_tokens(decode_rows=4, streams_text=True) == 1400
    assert 0.75 * 140 <= budget.prefill_tokens(4, True, restored_tokens=1400) <= 140


def test_slow_restores_continue_and_small_ones_are_no_evidence() -> None:
    budget = settled(base_ms=20.0, token_ms=1.0)
    budget.observe_restore(1000, 1e6)
    assert budget.restored_tokens(decode_rows=4, streams_text=True) == MIN_RESTORE
    assert budget.prefill_tokens(4, True, restored_tokens=MIN_RESTORE) == MIN_CHUNK
    budget = settled(base_ms=20.0, token_ms=1.0)
    budget.observe_restore(MIN_RESTORE - 1, 1e6)
    assert budget.restored_tokens(decode_rows=4, streams_text=True) == FIRST_RESTORE


@given(st.floats(0.01, 1e4), st.floats(1e-4, 1e3), st.floats(1.0, 1e4))
def test_a_chunk_is_never_out_of_bounds(base_ms: float, token_ms: float, step_ms: float) -> None:
    budget = settled(base_ms, token_ms, step_ms)
    for rows in ((0, False), (4, False), (4, True)):
        assert MIN_CHUNK <= budget.prefill_tokens(*rows) <= MAX_CHUNK


@pytest.mark.parametrize("step_ms", [50.0, 300.0, 1000.0])
def test_chunks_come_in_few_sizes(step_ms: float) -> None:
    sizes = {settled(10.0, 0.01 * 1.1**power, step_ms).prefill_tokens(1, True) for power in range(100)}
    assert len(sizes) <= 4 * 8
