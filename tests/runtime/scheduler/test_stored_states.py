"""Requests of a model with recurrent layers start at states that the page store has kept."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from arbora.runtime.messages import Abort, DropCache, FindPages
from arbora.runtime.scheduler import plan
from arbora.runtime.scheduler.budget import FIRST_RESTORE
from evicted_prompts import BIG, LONG, PROMPT, evict_all
from fake_model import long_reply_prompt, reply_alone
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_bench import SchedulerBench

MORE = [9, 8, 7, 6, 5]
CONVERSATIONS = [long_reply_prompt(60, 40, salt=salt) for salt in range(3)]


def new_bench(
    num_pages: int = 16, more_states: int = 4, write_through: bool = False, state_tokens: int = 0
) -> SchedulerBench:
    return SchedulerBench(
        num_pages,
        slots=2,
        max_pinned=4,
        states=2 * 2 + more_states,
        state_tokens=state_tokens,
        most_stored=1000,
        write_through=write_through,
    )


def serve(bench: SchedulerBench, name: str, prompt: list[int], max_tokens: int = 4) -> int:
    """Returns how many tokens were cached."""
    bench.submit(name, prompt, max_tokens)
    bench.run()
    assert bench.tokens(name) == reply_alone(prompt, max_tokens)
    assert not bench.model.store.held and not bench.model.store.held_states
    return next(each.cached_tokens for each in bench.outputs[name] if each.cached_tokens is not None)


def test_a_next_turn_starts_at_the_last_full_page_of_an_evicted_prompt() -> None:
    bench = new_bench()
    prompt = PROMPT[:38]
    serve(bench, "first", prompt)
    evict_all(bench)
    assert serve(bench, "second", [*prompt, *bench.tokens("first"), *MORE]) == 36
    assert bench.model.store.restored == 9
    assert serve(bench, "third", [*prompt, 1, 2]) == 36  # the restored state is in the tree
    assert bench.model.store.restored_states == 1


def test_a_long_reply_leaves_a_state_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "DECODE_CHECKPOINT_TOKENS", 6)
    bench = new_bench(num_pages=32)
    prompt = long_reply_prompt(30, 40)
    serve(bench, "first", prompt, 40)
    evict_all(bench)
    assert serve(bench, "second", [*prompt, *bench.tokens("first"), *MORE]) == 68
    evict_all(bench)
    assert serve(bench, "without its reply", [*prompt, *MORE]) == 28


def test_a_state_is_restored_to_pages_that_the_tree_has() -> None:
    bench = new_bench(num_pages=200, more_states=1, state_tokens=1000)
    serve(bench, "first", PROMPT)
    for salt in range(8):  # their checkpoints take the places of the first prompt's
        serve(bench, f"other{salt}", long_reply_prompt(20, 4, salt=salt + 1))
    assert serve(bench, "second", [*PROMPT, *MORE]) == 40
    assert (bench.model.store.restored_states, bench.model.store.restored) == (1, 0)
    assert bench.budget.restored_tokens(0, True) == FIRST_RESTORE  # the time of restoring pages is not known


def test_a_state_that_the_tree_lost_since_a_prompt_was_queued_is_restored() -> None:
    bench = SchedulerBench(num_pages=200, slots=1, states=3, most_stored=1000)
    serve(bench, "first", PROMPT)
    bench.submit("other", long_reply_prompt(20, 20, salt=1), 20)
    bench.submit("second", [*PROMPT, *MORE], 1, priority=1)
    bench.run()
    assert bench.cached("second") == 40
    assert (bench.model.store.restored_states, bench.model.store.restored) == (1, 0)


def test_a_state_is_restored_once_all_pages_before_it_are_copied() -> None:
    bench = new_bench(num_pages=250)
    serve(bench, "first", LONG[:898], 1)
    bench.submit("big", BIG, max_tokens=1, namespace="big")
    bench.answer_fetches()
    bench.plan()
    bench.step()
    assert bench.model.store.states and len(bench.model.store.pages) < 225
    assert serve(bench, "again", LONG, 1) == 896


def test_no_request_waits_for_restored_pages_after_which_no_state_comes() -> None:
    bench = new_bench(num_pages=32)
    serve(bench, "first", PROMPT)
    evict_all(bench)
    bench.budget.restored_tokens = lambda *_: 8  # type: ignore[method-assign]
    bench.submit("second", [*PROMPT, *MORE])
    bench.answer_fetches()
    bench.plan()
    bench.submit("third", [*PROMPT[:20], *MORE])
    bench.answer_fetches()
    bench.plan()
    assert [len(step.rows) for step in bench.model.plans] == [0, 1]
    bench.run()
    assert bench.tokens("second") == reply_alone([*PROMPT, *MORE], 8)
    assert bench.tokens("third") == reply_alone([*PROMPT[:20], *MORE], 8)


def test_a_state_without_all_pages_before_it_is_not_used() -> None:
    bench = new_bench()
    serve(bench, "first", PROMPT)
    evict_all(bench)
    del bench.model.store.pages[next(iter(bench.model.store.pages))]
    keys = set(bench.model.store.pages)
    bench.submit("second", [*PROMPT, *MORE], 1)
    [question] = bench.model.store.asked
    assert isinstance(question, FindPages) and len(question.others[0].keys) == 16 * 11
    assert {question.keys[at : at + 16] for at in range(0, 160, 16)} - keys
    bench.run()
    assert bench.cached("second") == 0
    assert bench.tokens("second") == reply_alone([*PROMPT, *MORE], 1)


@pytest.mark.parametrize("steps", range(4))
def test_a_request_may_end_before_its_state_is_restored(steps: int) -> None:
    bench = new_bench()
    serve(bench, "first", PROMPT)
    evict_all(bench)
    bench.submit("second", [*PROMPT, *MORE])
    bench.answer_fetches()
    for _ in range(steps):
        if bench.plan():
            bench.step()
    bench.handle(Abort("second"))
    bench.run()
    serve(bench, "third", [*PROMPT, 1, 2, 3])
    assert not bench.model.store.held_states


def test_states_of_a_dropped_namespace_are_not_found() -> None:
    bench = new_bench()
    serve(bench, "first", PROMPT)
    evict_all(bench)
    assert bench.model.store.states
    bench.control(DropCache(0, 1, "", None))
    assert not bench.model.store.states
    assert serve(bench, "second", [*PROMPT, *MORE]) == 0


def test_at_the_end_all_checkpoints_at_ends_of_pages_are_saved() -> None:
    bench = new_bench(num_pages=64)
    serve(bench, "first", PROMPT)
    assert not bench.model.store.states
    bench.drain()
    assert sorted(len(state) for _, state in bench.model.store.states.values()) == [36, 40]


def test_with_write_through_states_are_saved_as_they_are_computed() -> None:
    bench = new_bench(num_pages=64, write_through=True)
    serve(bench, "first", PROMPT)
    assert [len(state) for _, state in bench.model.store.states.values()] == [36, 40]


def test_with_write_through_a_state_before_the_end_of_the_prompt_is_saved() -> None:
    bench = new_bench(num_pages=64, write_through=True)
    serve(bench, "first", PROMPT[:38])
    assert [len(state) for _, state in bench.model.store.states.values()] == [36]


@settings(max_examples=60, deadline=None)
@given(
    turns=st.lists(
        st.tuples(st.sampled_from(CONVERSATIONS), st.integers(1, 60), st.integers(1, 8), st.booleans()),
        min_size=4,
        max_size=24,
    ),
    pages=st.integers(20, 60),
    more_states=st.integers(0, 6),
    most_stored=st.sampled_from([3, 20, 1000]),
    host_pages=st.sampled_from([4, 100]),
    write_through=st.booleans(),
)
def test_in_any_history_replies_are_those_of_the_request_alone(
    turns: Sequence[tuple[list[int], int, int, bool]],
    pages: int,
    more_states: int,
    most_stored: int,
    host_pages: int,
    write_through: bool,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "CHECKPOINT_TOKENS", 6)
        patch.setattr(plan, "DECODE_CHECKPOINT_TOKENS", 3)
        bench = SchedulerBench(
            pages,
            slots=3,
            states=6 + more_states,
            most_stored=most_stored,
            host_pages=host_pages,
            write_through=write_through,
        )
        prompts = []
        for number, (document, length, more, is_last) in enumerate(turns):
            prompts.append([*document[:length], *MORE[: more // 2]])
            bench.submit(f"r{number}", prompts[-1], more)
            if is_last:
                bench.run()
        bench.run()
        for number, (prompt, (_, _, more, _)) in enumerate(zip(prompts, turns, strict=True)):
            assert bench.tokens(f"r{number}") == reply_alone(prompt, more)
        bench.drain()
        assert not bench.model.store.held and not bench.model.store.held_states
