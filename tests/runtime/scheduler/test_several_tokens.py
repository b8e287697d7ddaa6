"""Steps whose rows sample several tokens. The next step is planned before their number is known."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from arbora.runtime.messages import Abort
from evicted_prompts import PROMPT, FewRestored, with_evicted_prompt
from fake_model import EOS, long_reply_prompt, reply_alone
from scheduler_bench import SchedulerBench

Count = Callable[[int], int]
chance = Random(1)


def choose_any(most: int) -> int:
    """A number of tokens; 0: the row must be repeated."""
    return chance.randint(int(most == 1), most)


by_count = pytest.mark.parametrize("count", [lambda most: 1, lambda most: most, choose_any])


@by_count
def test_replies_are_those_of_rows_that_sample_one_token(count: Count) -> None:
    bench = SchedulerBench(max_sampled=4, count=count)
    prompts = {name: long_reply_prompt(9 + 5 * at, 30, at) for at, name in enumerate("abc")}
    for name, prompt in prompts.items():
        bench.submit(name, prompt, max_tokens=30)
    bench.run()
    for name, prompt in prompts.items():
        assert bench.tokens(name) == reply_alone(prompt, 30)
        assert bench.finish(name) == "length"


def test_several_tokens_need_fewer_steps() -> None:
    bench = SchedulerBench(max_sampled=4)
    bench.submit("a", long_reply_prompt(9, 33), max_tokens=33)
    bench.run()
    assert bench.scheduler.stats().steps == 1 + 32 // 4


@by_count
def test_nothing_is_planned_past_the_length(count: Count) -> None:
    bench = SchedulerBench(page_size=1, num_pages=13, max_sampled=4, count=count)
    bench.submit("a", long_reply_prompt(5, 8))
    bench.run()
    assert len(bench.tokens("a")) == 8


@by_count
def test_tokens_after_an_end_are_dropped_and_the_next_turn_finds_those_before(count: Count) -> None:
    prompt = next(p for p in ([i, 3] * 4 for i in range(5000)) if reply_alone(p, 6)[-1] == EOS)
    reply = reply_alone(prompt, 6)
    bench = SchedulerBench(page_size=1, max_sampled=4, count=count)
    bench.submit("a", prompt, max_tokens=50)
    bench.run()
    assert bench.tokens("a") == reply
    assert (bench.finish("a"), bench.outputs["a"][-1].stop_token) == ("stop", EOS)
    turn = [*prompt, *reply, 7, 9]
    bench.submit("b", turn, max_tokens=4)
    bench.run()
    assert bench.cached("b") in (len(prompt) + len(reply) - 1, len(prompt) + len(reply))
    assert bench.tokens("b") == reply_alone(turn, 4)


@by_count
def test_retracted_requests_resume_with_the_tokens_that_were_sampled(count: Count) -> None:
    bench = SchedulerBench(num_pages=26, page_size=4, max_sampled=4, count=count)
    prompts = {name: long_reply_prompt(16, 40, ord(name)) for name in "abc"}
    for name, prompt in prompts.items():
        bench.submit(name, prompt, max_tokens=40)
    bench.run()
    assert bench.scheduler.stats().retractions > 0
    for name, prompt in prompts.items():
        assert bench.tokens(name) == reply_alone(prompt, 40)


@by_count
@pytest.mark.parametrize("steps", range(1, 6))
def test_the_tree_gets_only_tokens_that_a_dropped_request_has_computed(count: Count, steps: int) -> None:
    prompt = long_reply_prompt(6, 40)
    bench = SchedulerBench(page_size=1, max_sampled=4, count=count)
    bench.submit("a", prompt, max_tokens=40)
    bench.run(steps)
    known = [*prompt, *bench.tokens("a")]
    bench.handle(Abort("a"))
    bench.run()
    bench.submit("b", [*known, 7, 9], max_tokens=6)
    bench.run()
    assert bench.cached("b") in (len(known) - 1, len(known))
    assert bench.tokens("b") == reply_alone([*known, 7, 9], 6)


@by_count
@pytest.mark.parametrize("steps", range(4))
def test_the_model_process_gets_the_replies_of_ended_requests_up_to_their_last_token(
    count: Count, steps: int
) -> None:
    prompts = {name: long_reply_prompt(6, 12, ord(name)) for name in "ab"}
    bench = SchedulerBench(max_sampled=4, count=count)
    for name, prompt in prompts.items():
        bench.submit(name, prompt, max_tokens=12)
    bench.submit("unshared", [5, 6, 7], max_tokens=2, namespace=None)
    bench.run(1 + steps)
    bench.handle(Abort("b"))
    bench.run()
    bench.submit("later", [5, 6, 7], max_tokens=2, namespace=None)
    bench.run()
    assert sorted(bench.model.ended) == sorted(prompts[name] + bench.tokens(name) for name in "ab")


def test_a_request_that_ends_before_its_first_row_leaves_no_reply() -> None:
    bench = with_evicted_prompt(max_sampled=4, budget=FewRestored(step_ms=8.0))
    bench.submit("again", PROMPT, max_tokens=1)
    bench.answer_fetches()
    assert bench.plan(), "a step that restores pages"
    assert not bench.model.plans[-1].rows
    bench.handle(Abort("again"))
    bench.run()
    ended = list(bench.model.ended)
    bench.submit("other", [3, 1, 4], max_tokens=1)
    bench.run()
    assert bench.model.ended == ended
