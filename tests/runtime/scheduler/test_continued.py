"""A reply that another replica has begun goes on with the tokens that it would have had there."""

from __future__ import annotations

import pytest
from fake_model import long_reply_prompt, reply_alone, unpack
from followed_rows import FollowedRows
from scheduler_bench import EvenTokens, SchedulerBench
from stack_automata import two_brackets

PROMPT = long_reply_prompt(20, 30)


@pytest.mark.parametrize("begun", [1, 12, 29])
def test_the_rest_of_a_reply_follows_its_beginning(begun: int) -> None:
    whole = reply_alone(PROMPT, 30)
    bench = SchedulerBench(num_pages=64, page_size=4)
    bench.submit("a", PROMPT, 30, output=whole[:begun])
    bench.run()
    assert bench.tokens("a") == whole[begun:]
    assert bench.finish("a") == "length"
    stats = bench.scheduler.stats()
    assert (stats.output_tokens, stats.pages_used) == (30 - begun, 0)
    assert bench.cached("a") == 0
    bench.submit("next", PROMPT + whole, 1)
    bench.run()
    assert bench.cached("next") == len(PROMPT) + 29, "prompt and reply are in the tree"


def test_the_slot_is_set_up_at_the_position_and_with_the_penalties_of_the_reply() -> None:
    whole = reply_alone(PROMPT, 30)
    bench = SchedulerBench(num_pages=64, page_size=4)
    bench.submit("a", PROMPT, 30, output=whole[:10], presence_penalty=0.5, min_tokens=15)
    while bench.plan():
        pass
    (setup,) = [each for plan in bench.model.plans for each in plan.setups]
    assert (setup.position, unpack(setup.prompt), unpack(setup.output)) == (10, PROMPT, whole[:10])
    assert setup.banned_tokens
    bench.run()
    assert bench.tokens("a") == whole[10:]


def test_prompt_logprobs_are_not_sent_again() -> None:
    bench = SchedulerBench(num_pages=64, page_size=4)
    bench.submit("a", PROMPT, 30, output=reply_alone(PROMPT, 4), prompt_logprobs=0)
    bench.run()
    assert all(output.prompt_logprobs is None for output in bench.outputs["a"])


@pytest.mark.parametrize("begun", [1, 5, 11])
def test_an_automaton_goes_on_at_its_state_and_stack(begun: int) -> None:
    def run(output: list[int]) -> list[int]:
        compiler, rows = EvenTokens(two_brackets()), FollowedRows()
        bench = SchedulerBench(64, page_size=4, slots=4, compiler=compiler, automata=rows)
        bench.submit("a", [1, 2, 3], 12, "automaton", seed=5, output=output)
        bench.compiler.finish_all()
        bench.run()
        assert bench.finish("a") in ("length", "stop")
        return bench.tokens("a")

    whole = run([])
    assert len(whole) > begun
    assert run(whole[:begun]) == whole[begun:]


def test_a_matcher_steps_over_the_beginning_of_the_reply_first(monkeypatch: pytest.MonkeyPatch) -> None:
    appended: list[list[int]] = []
    monkeypatch.setattr(EvenTokens, "append", lambda self, tokens: appended.append(tokens))
    bench = SchedulerBench(64, page_size=4)
    for name, output in (("new", []), ("begun", [2, 4, 6])):
        bench.submit(name, [1, 2, 3], 12, "even", output=output)
    bench.compiler.finish_all()
    bench.update()
    assert appended == [[2, 4, 6]]
