"""Rows whose automata have a stack: the state that the scheduler sends when it sets them up."""

from __future__ import annotations

import numpy as np
import pytest
from arbora.grammars import CompilerError
from arbora.runtime.messages import BACKGROUND_PRIORITY, SlotSetup
from arbora.runtime.scheduler import grammar_loader
from arbora.runtime.scheduler.constraint import AutomatonConstraint, DeviceState
from arbora.runtime.scheduler.fairness import MAX_OVERTAKEN
from fake_model import pack
from followed_rows import FollowedRows
from scheduler_bench import EvenTokens, SchedulerBench
from stack_automata import two_brackets


def bench_with_brackets(num_pages: int) -> SchedulerBench:
    compiler, rows = EvenTokens(two_brackets()), FollowedRows()
    return SchedulerBench(num_pages, page_size=4, slots=4, compiler=compiler, automata=rows)


def replies(num_pages: int, names: str) -> tuple[list[list[int]], int]:
    """The replies of requests with one seed each, and the number of retractions."""
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


def test_a_new_row_starts_with_an_empty_stack_and_a_retracted_one_with_its_stack() -> None:
    constraint = AutomatonConstraint(two_brackets(), EvenTokens().spelled)
    constraint.grammar = 7
    assert constraint.device_state() == DeviceState(7, 0, b"")
    for token, state in ((1, 0), (2, 1), (6, 1), (1, 0)):
        constraint.accept(token, state)
    constraint.append([3])
    assert constraint.device_state() == DeviceState(7, 1, pack([0, 0, 1]))


def test_a_token_that_left_the_grammar_is_an_error() -> None:
    constraint = AutomatonConstraint(two_brackets(), EvenTokens().spelled)
    assert constraint.accept(3, 0) is None
    error = constraint.accept(3, -1)
    assert isinstance(error, CompilerError) and "left its grammar" in str(error)


def test_a_thousand_grammars_in_flight_stay_within_the_devices_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 5 * two_brackets().nbytes
    monkeypatch.setattr(grammar_loader, "DEVICE_BYTES", limit)
    compiler, rows = EvenTokens(two_brackets()), FollowedRows()
    bench = SchedulerBench(256, 4, slots=8, max_waiting=1000, compiler=compiler, automata=rows)
    for number in range(1000):
        bench.submit(str(number), [1, 2, number % 50], 3, f"copy {number}", seed=number)
    bench.compiler.finish_all()
    most = 0
    while not bench.scheduler.idle:
        bench.update()
        while bench.plan():
            pass
        most = max(most, len(bench.model.grammars))
        bench.step()
    assert most == 5
    assert all(bench.finish(str(number)) in ("stop", "length") for number in range(1000))
    assert sorted(bench.model.loaded) == list(range(1, 1001))


def test_a_request_whose_automaton_does_not_fit_is_overtaken_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grammar_loader, "DEVICE_BYTES", two_brackets().nbytes)
    compiler, rows = EvenTokens(two_brackets()), FollowedRows(accepting=np.zeros(2, np.bool_))
    bench = SchedulerBench(num_pages=128, page_size=4, slots=2, compiler=compiler, automata=rows)
    bench.submit("first", [1, 2], 300, "copy 1")
    bench.submit("second", [1, 3], 2, "copy 2")
    others = [f"other{number}" for number in range(MAX_OVERTAKEN + 5)]
    for number, name in enumerate(others):
        bench.submit(name, [1, 4 + number // 50, number % 50], 1, "copy 1")
    bench.compiler.finish_all()
    bench.run(280)
    passed = [bench.finish(name) is not None for name in others]
    assert passed == [True] * MAX_OVERTAKEN + [False] * 5
    bench.run()
    assert all(bench.finish(name) == "length" for name in ["first", "second", *others])


def test_an_automaton_of_the_background_gives_way_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_loader, "DEVICE_BYTES", 2 * two_brackets().nbytes)
    compiler, rows = EvenTokens(two_brackets()), FollowedRows(accepting=np.zeros(2, np.bool_))
    bench = SchedulerBench(num_pages=400, compiler=compiler, automata=rows)
    for number in range(3):
        bench.submit(f"b {number}", [1, 2, number], 200, f"copy {number}", priority=BACKGROUND_PRIORITY)
    bench.submit("shares", [1, 3], 200, "copy 1")
    bench.compiler.finish_all()
    bench.run(steps=5)
    bench.submit("interactive", [1, 9], 3, "copy other")
    bench.compiler.finish_all()
    bench.run(steps=20)
    assert bench.finish("interactive") == "length"
    assert bench.finish("shares") is None
    assert bench.scheduler.stats().retractions == 1
    bench.run()
    assert all(bench.finish(f"b {number}") == "length" for number in range(3))


class SomeFollowedRows(FollowedRows):
    """Rows without an automaton emit one token again and again."""

    def set_up(self, setup: SlotSetup) -> None:
        self.slots.pop(setup.slot, None)
        if setup.grammar is not None:
            super().set_up(setup)

    def choose(self, slot: int, number: int) -> tuple[int, int]:
        return super().choose(slot, number) if slot in self.slots else (8, 0)


def full_bench(monkeypatch: pytest.MonkeyPatch, holder_priority: int = 0) -> SchedulerBench:
    """A bench of two slots: "holder" fills the grammar memory; "batch", in the background, has none."""
    monkeypatch.setattr(grammar_loader, "DEVICE_BYTES", two_brackets().nbytes)
    compiler, rows = EvenTokens(two_brackets()), SomeFollowedRows(accepting=np.zeros(2, np.bool_))
    bench = SchedulerBench(num_pages=400, slots=2, compiler=compiler, automata=rows)
    bench.submit("holder", [1, 2, 3], 60, "copy 1", priority=holder_priority)
    bench.compiler.finish_all()
    bench.run(steps=3)
    bench.submit("batch", [1, 5, 7], 200, priority=BACKGROUND_PRIORITY, ignore_eos=True)
    bench.run(steps=10)
    return bench


def test_the_background_keeps_a_slot_that_a_request_without_grammar_memory_cannot_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = full_bench(monkeypatch)
    bench.submit("other", [1, 9], 3, "copy 2")
    bench.compiler.finish_all()
    before = len(bench.tokens("batch"))
    bench.run(steps=30)
    assert len(bench.tokens("batch")) == before + 30
    assert bench.scheduler.stats().retractions == 0
    bench.run()
    assert [bench.finish(name) for name in ("holder", "other", "batch")] == ["length"] * 3


def test_a_request_that_lacks_only_a_slot_passes_one_that_lacks_grammar_memory_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = full_bench(monkeypatch)
    bench.submit("other", [1, 9], 3, "copy 2")
    bench.compiler.finish_all()
    bench.submit("plain", [1, 11], 3)
    bench.run(steps=8)
    assert (bench.finish("plain"), bench.finish("other")) == ("length", None)
    bench.run(steps=20)
    assert bench.scheduler.stats().retractions == 1
    bench.run()
    assert bench.finish("other") == bench.finish("batch") == "length"


def test_a_slot_and_grammar_memory_of_the_background_are_given_back_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = full_bench(monkeypatch, holder_priority=BACKGROUND_PRIORITY)
    bench.submit("other", [1, 9], 3, "copy 2")
    bench.compiler.finish_all()
    bench.run(steps=10)
    assert bench.finish("other") == "length"
    assert bench.scheduler.stats().retractions == 1
