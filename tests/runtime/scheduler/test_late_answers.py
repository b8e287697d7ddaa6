"""Requests are stalled while the process of their grammar has not answered; others are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from arbora.grammars import CompilerError, ForcedText
from arbora.runtime.messages import Abort, RowError
from arbora.runtime.scheduler.results import MAX_WAIT_S, WaitBudget
from fake_model import EOS, VOCAB, long_reply_prompt, reply_alone
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scheduler_bench import EvenTokens, SchedulerBench


class Clock:
    """Only waiting takes time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.waits.append(seconds)


class LateMatcher:
    """A grammar that allows the token 2 or 4, then forces 6, 8 and 10, and repeats that.

    `answers()` is called at each wait for its process; it returns whether the process answers.
    """

    def __init__(self, clock: Clock, answers: Callable[[], bool]) -> None:
        self.error: CompilerError | None = None
        self._clock = clock
        self._answers = answers
        self._place = 0
        self._is_asked = True  # for the first mask
        self._is_begun = False

    def is_ready(self, within_s: float) -> bool:
        if self._is_asked and self._answers():
            self._is_asked = False
        if self._is_asked:
            self._clock.wait(within_s)
        return not self._is_asked

    def begin(self, token: int) -> None:
        assert not self._is_begun, "the answer to a token comes before the next token"
        self._is_begun = self._is_asked = True

    def consume(self, token: int) -> object:
        self._use()
        self._is_begun = False
        if self.error is not None:
            return self.error
        assert token in self._allowed(), "the token of a mask"
        self._place += 1
        return None

    def append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            assert token in self._allowed(), "forced text"
            self._place += 1
        self._is_asked = True

    def forced_text(self) -> ForcedText:
        self._use()
        run = (6, 8, 10)[self._place % 4 - 1 :] if self._place % 4 else ()
        return ForcedText(bytes(run), b"", False)

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        self._use()
        allowed = np.isin(np.arange(VOCAB), self._allowed())
        mask[:] = np.packbits(allowed, bitorder="little").view(np.int32)

    def _use(self) -> None:
        assert not self._is_asked, "the scheduler would have to wait"

    def _allowed(self) -> tuple[int, ...]:
        return ((2, 4), (6,), (8,), (10,))[self._place % 4]


class LateGrammars(EvenTokens):
    def __init__(self, answers: Callable[[], bool]) -> None:
        super().__init__()
        self.clock = Clock()
        self.answers = answers
        self.matchers: list[LateMatcher] = []

    def matcher(self) -> Any:
        self.matchers.append(LateMatcher(self.clock, lambda: self.answers()))
        return self.matchers[-1]


def bench_with(answers: Callable[[], bool], **options: Any) -> tuple[SchedulerBench, LateGrammars]:
    grammars = LateGrammars(answers)
    return SchedulerBench(compiler=grammars, wait_budget=WaitBudget(grammars.clock), **options), grammars


def run(bench: SchedulerBench) -> None:
    """Runs steps until no request is left."""
    for _ in range(2000):
        bench.run(steps=1)
        if bench.scheduler.idle:
            return
    raise AssertionError("some request never ended")


def replies(
    answers: Callable[[], bool], requests: list[tuple[int, int]], jumps: bool, **options: int
) -> dict[str, list[int]]:
    bench, _ = bench_with(answers, jumps=jumps, **options)
    for number, (length, max_tokens) in enumerate(requests):
        prompt = [1 + (at * (number + 3)) % 50 for at in range(length)]
        bench.submit(f"r{number}", prompt, max_tokens, "late" if number % 3 else None)
    bench.compiler.finish_all()
    run(bench)
    return {f"r{number}": bench.tokens(f"r{number}") for number in range(len(requests))}


@settings(max_examples=150, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=2, max_size=7),
    pages=st.integers(20, 60),
    page_size=st.sampled_from([1, 4]),
    jumps=st.booleans(),
    seed=st.integers(0, 99),
    late=st.sampled_from([0.2, 0.5, 0.9]),
)
def test_late_answers_change_no_reply(
    requests: list[tuple[int, int]], pages: int, page_size: int, jumps: bool, seed: int, late: float
) -> None:
    """Few pages, so that requests are retracted while they are stalled."""
    chance = Random(seed)
    options = {"num_pages": pages * (4 // page_size), "page_size": page_size, "slots": 4}
    expected = replies(lambda: True, requests, jumps, **options)
    assert replies(lambda: chance.random() > late, requests, jumps, **options) == expected


@pytest.mark.parametrize("first_answers", [0, 1, 2, 3, 4, 5, 6])
def test_rows_go_on_while_a_grammars_process_is_silent(first_answers: int) -> None:
    given = iter([True] * first_answers)
    bench, grammars = bench_with(lambda: next(given, False), jumps=True)
    prompt = long_reply_prompt(6, 40)
    bench.submit("streams", prompt, 40)
    bench.submit("silent", [1, 2, 3], 40, "late")
    bench.compiler.finish_all()
    bench.run(steps=60)
    assert bench.tokens("streams") == reply_alone(prompt, 40) and bench.finish("streams") == "length"
    assert bench.scheduler.awaits_answers and bench.finish("silent") is None
    grammars.answers = lambda: True
    run(bench)
    assert len(bench.tokens("silent")) == 40


def test_a_turn_waits_for_all_silent_processes_together() -> None:
    bench, grammars = bench_with(lambda: False)
    for number in range(8):
        bench.submit(str(number), [1, 2, number], 4, "late")
    bench.compiler.finish_all()
    for turns in range(1, 30):
        bench.run(steps=1)
        assert grammars.clock.now <= turns * MAX_WAIT_S + 1e-9
    assert max(grammars.clock.waits) <= MAX_WAIT_S


def test_a_request_whose_process_fails_after_a_wait_ends_with_its_error() -> None:
    bench, grammars = bench_with(lambda: True)
    bench.submit("a", [1, 2, 3], 20, "late")
    bench.compiler.finish_all()
    bench.run(steps=3)
    grammars.answers = lambda: False
    bench.run(steps=5)
    assert bench.finish("a") is None
    grammars.matchers[0].error = CompilerError("its process gave no answer")
    grammars.answers = lambda: True
    run(bench)
    assert bench.finish("a") == "error" and len(bench.tokens("a")) < 20


@pytest.mark.parametrize("kind", ["mask_late", "nothing_allowed"])
def test_an_error_in_place_of_a_discarded_token_does_not_fail_the_request(kind: Any) -> None:
    expected = replies(lambda: True, [(3, 1), (3, 20)], jumps=True)["r1"]
    bench, _ = bench_with(lambda: True, jumps=True)
    bench.submit("r1", [1, 5, 9], 20, "late")
    bench.compiler.finish_all()
    bench.update()
    discarded = 0
    while bench.plan() or bench.model.plans:
        bench.plan()
        request = bench.scheduler._requests.find("r1")
        result = bench.model.run_step()
        if request and request.held and result.step <= request.held.discard_until_step:
            result.errors = [RowError(0, kind, "it went wrong")]
            discarded += 1
        bench.handle(result)
    assert discarded and bench.tokens("r1") == expected and bench.finish("r1") == "length"


def test_a_stalled_request_can_be_dropped() -> None:
    bench, grammars = bench_with(lambda: True)
    for name in "ab":
        bench.submit(name, [1, 2, 3], 20, "late")
    bench.compiler.finish_all()
    bench.run(steps=3)
    grammars.answers = lambda: False
    bench.run(steps=3)
    bench.handle(Abort("a"))
    bench.handle(Abort("b"))
    run(bench)
    assert not bench.scheduler.awaits_answers
    assert EOS not in bench.tokens("a")
