"""Rows whose automata have a stack: what the scheduler tells of where they stand."""

from __future__ import annotations

import numpy as np
import pytest
from arbora.grammars import Automaton
from arbora.grammars import stack_automaton as compiler
from arbora.kernels.automaton import Tables, layout
from arbora.kernels.automaton.layout import POP, PUSH
from arbora.runtime.scheduler.constraint import AutomatonConstraint, DeviceState
from fake_model import VOCAB, pack
from followed_rows import FollowedRows
from scheduler_bench import EvenTokens, SchedulerBench
from stack_automata import automaton, no_lists, rows_of


def two_brackets() -> Automaton:
    """Tokens 4n + 1 and 4n + 2 open two kinds of bracket, 4n + 3 closes either; 4n is not allowed directly
    inside the second kind."""
    pushes = [[PUSH, target, operand] for target, operand in ((0, 0), (0, 1), (1, 0), (1, 1))]
    tables = Tables(
        class_of_byte=(np.arange(256) % 4).astype(np.uint8),
        **rows_of(np.array([[0, -2, -4, -6], [-1, -3, -5, -6]])),
        mask_of_state=np.zeros(2, np.int32),
        masks=np.zeros((1, VOCAB // 32), np.int32),
        actions=np.array([*pushes, [POP, 0, 0]], np.int32),
        returns=np.array([0, 1], np.int32),
        **no_lists(2),
    )
    return automaton("brackets", tables)


def bench_with_brackets(num_pages: int) -> SchedulerBench:
    compiler, rows = EvenTokens(two_brackets()), FollowedRows()
    return SchedulerBench(num_pages, page_size=4, slots=4, compiler=compiler, automata=rows)


def replies(num_pages: int, names: str) -> tuple[list[list[int]], int]:
    """What requests of one seed each get, and how often one was retracted."""
    bench = bench_with_brackets(num_pages)
    for name in names:
        bench.submit(name, [1, 2, ord(name)], 40, "automaton", seed=ord(name), min_tokens=0)
    bench.compiler.finish_all()
    bench.run()
    assert all(bench.finish(name) in ("stop", "length") for name in names)
    return [bench.tokens(name) for name in names], bench.scheduler.stats().retractions


@pytest.mark.parametrize("names", ["abc", "defg", "hijk"])
def test_a_retracted_row_resumes_at_its_state_and_stack(names: str) -> None:
    alone = [replies(64, name)[0][0] for name in names]
    together, retractions = replies(24, names)
    assert retractions > 0
    assert together == alone


def test_a_new_row_starts_with_an_empty_stack_and_goes_on_with_what_was_pushed() -> None:
    constraint = AutomatonConstraint(7, two_brackets(), EvenTokens().spelled)
    assert constraint.device_state(b"") == DeviceState(7, 0, b"")
    assert constraint.device_state(pack([1, 2, 6, 1, 3])) == DeviceState(7, 1, pack([0, 0, 1]))


def test_a_token_that_left_the_grammar_is_an_error() -> None:
    constraint = AutomatonConstraint(1, two_brackets(), EvenTokens().spelled)
    assert constraint.accept(3, 0) is None
    assert "left its grammar" in (constraint.accept(3, -1) or "")


def test_compiler_and_kernels_agree_on_their_numbers() -> None:
    kinds = ["PUSH", "POP", "CALL", "COUNT", "COUNT_CALL", "DROP", "OPEN", "CLOSE", "SEE", "NEED"]
    for kind in kinds:
        assert getattr(compiler, kind) == getattr(layout, kind)
    assert compiler.MAX_DEPTH == layout.STACK_DEPTH
    assert compiler.MAX_SEEN < 32, "a set is one place of the stack, an int32"
