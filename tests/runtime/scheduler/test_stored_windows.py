"""Requests of models with windows start where the page store has kept the pages of each group."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from arbora.radix_cache import Reach
from arbora.runtime.messages import Abort, DiscardPages, DropCache, FindPages
from evicted_prompts import BIG, LONG, PROMPT, evict_all
from fake_model import long_reply_prompt, reply_alone
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_bench import SchedulerBench

WINDOW = Reach(10)
MORE = [9, 8, 7, 6, 5]
CONVERSATIONS = [long_reply_prompt(60, 40, salt=salt) for salt in range(3)]


def new_bench(
    num_pages: int = 16,
    windowed: int = 14,
    write_through: bool = False,
    reaches: Sequence[Reach] = (WINDOW,),
) -> SchedulerBench:
    return SchedulerBench(
        num_pages,
        slots=2,
        most_stored=1000,
        write_through=write_through,
        windows=[(reach, windowed) for reach in reaches],
    )


def serve(bench: SchedulerBench, name: str, prompt: list[int], max_tokens: int = 4) -> int:
    """Returns how many tokens were cached."""
    bench.submit(name, prompt, max_tokens)
    bench.run()
    assert bench.tokens(name) == reply_alone(prompt, max_tokens)
    assert not bench.model.store.held
    return next(each.cached_tokens for each in bench.outputs[name] if each.cached_tokens is not None)


@pytest.mark.parametrize("reaches", [(WINDOW,), (Reach(12, in_chunks=True),), (Reach(5), Reach(20))])
def test_a_next_turn_goes_on_after_an_evicted_reply(reaches: tuple[Reach, ...]) -> None:
    bench = new_bench(reaches=reaches, windowed=16)
    serve(bench, "first", PROMPT[:38])
    evict_all(bench)
    assert serve(bench, "second", [*PROMPT[:38], *bench.tokens("first"), *MORE]) == 40
    assert bench.model.store.restored == 10
    assert 0 < bench.model.store.restored_windows <= 3 * len(reaches) + 3
    assert serve(bench, "third", [*PROMPT[:38], *bench.tokens("first"), 1, 2]) >= 40
    assert bench.model.store.restored == 10  # the restored pages of all groups are in the tree


def test_windowed_pages_that_the_tree_lost_alone_are_restored() -> None:
    bench = new_bench(num_pages=200)
    serve(bench, "first", PROMPT)
    for salt in range(8):  # their pages take the places of the first prompt's
        serve(bench, f"other{salt}", long_reply_prompt(40, 4, salt=salt + 1))
    assert bench.cache.match("", b"".join(t.to_bytes(4, "little") for t in PROMPT)).length == 0
    assert serve(bench, "second", [*PROMPT, *bench.tokens("first"), *MORE]) == 40
    assert (bench.model.store.restored, bench.model.store.restored_windows) == (0, 3)
    assert serve(bench, "third", [*PROMPT, *bench.tokens("first"), 1, 2]) >= 40
    assert bench.model.store.restored_windows == 3


def test_pages_far_behind_the_ends_of_requests_are_not_saved() -> None:
    bench = new_bench(num_pages=250)
    serve(bench, "first", LONG)
    evict_all(bench)
    bench.submit("again", [*LONG, *bench.tokens("first"), *MORE], 1)
    bench.run()
    assert bench.cached("again") == 900
    assert 225 <= bench.model.store.saved < 225 + 247 + 60


def test_an_end_whose_windowed_pages_are_not_all_stored_is_not_used() -> None:
    bench = new_bench()
    serve(bench, "first", PROMPT)
    evict_all(bench)
    store = bench.model.store
    bench.submit("second", [*PROMPT, *MORE], 1)
    [question] = store.asked
    assert isinstance(question, FindPages)
    keys = question.others[0].keys
    last = [keys[at : at + 16] for at in range(0, len(keys), 16)][9]
    assert last in store.pages
    del store.pages[last]
    bench.run()
    assert (bench.cached("second") or 0) < 40
    assert bench.tokens("second") == reply_alone([*PROMPT, *MORE], 1)


@pytest.mark.parametrize("steps", range(4))
def test_a_request_may_end_before_its_windows_are_restored(steps: int) -> None:
    bench = new_bench(num_pages=250)
    serve(bench, "first", LONG)
    bench.submit("big", BIG, max_tokens=1, namespace="big")
    bench.run()
    bench.budget.restored_tokens = lambda *_: 400  # type: ignore[method-assign]
    bench.submit("second", [*LONG, *MORE])
    bench.answer_fetches()
    for _ in range(steps):
        if bench.plan():
            bench.step()
    bench.handle(Abort("second"))
    bench.run()
    serve(bench, "third", [*LONG, 1, 2, 3])


def test_a_request_that_needs_less_than_is_being_restored_is_computed() -> None:
    bench = new_bench(num_pages=32)
    serve(bench, "first", PROMPT)
    evict_all(bench)
    bench.budget.restored_tokens = lambda *_: 8  # type: ignore[method-assign]
    bench.submit("second", [*PROMPT, *MORE])
    bench.answer_fetches()
    bench.plan()
    bench.submit("third", [*PROMPT[:20], *MORE])
    bench.run()
    assert bench.tokens("second") == reply_alone([*PROMPT, *MORE], 8)
    assert bench.tokens("third") == reply_alone([*PROMPT[:20], *MORE], 8)


def test_with_write_through_the_windowed_pages_at_a_requests_ends_count_as_used() -> None:
    bench = new_bench(num_pages=400, windowed=40, write_through=True)
    serve(bench, "first", LONG)
    turn = [*LONG, *bench.tokens("first"), *long_reply_prompt(80, 4, salt=1)]
    serve(bench, "second", turn)
    store = bench.model.store
    first, second = store.used_others
    assert len(first) < 8 and len(second) < 16, "the second prompt has some 247 pages"
    assert set(first) <= set(second) <= store.pages.keys()


def test_pages_of_a_dropped_namespace_are_not_found() -> None:
    bench = new_bench()
    serve(bench, "first", PROMPT)
    evict_all(bench)
    bench.control(DropCache(0, 1, "", None))
    assert not bench.model.store.pages
    assert serve(bench, "second", [*PROMPT, *MORE]) == 0


@pytest.mark.parametrize("write_through", [False, True])
def test_what_a_request_needs_to_go_on_is_saved_at_the_end(write_through: bool) -> None:
    bench = new_bench(num_pages=64, windowed=30, write_through=write_through)
    serve(bench, "first", PROMPT)
    if not write_through:
        assert not bench.model.store.pages
        bench.drain()
    saved = bench.model.store.saved
    assert 10 + 3 <= saved <= 11 + 11
    other = new_bench(num_pages=64, windowed=30)
    other.model.store.pages = bench.model.store.pages
    assert serve(other, "second", [*PROMPT, *bench.tokens("first"), *MORE]) == 40


def test_windows_are_saved_if_all_full_pages_were_saved_before_the_end() -> None:
    bench = new_bench(num_pages=250, windowed=200, write_through=True)
    bench.budget.prefill_tokens = lambda *_: 1000  # type: ignore[method-assign]
    prompt = long_reply_prompt(801, 4)
    serve(bench, "first", prompt, max_tokens=2)  # the step of the prompt saves all full pages
    other = new_bench(num_pages=250, windowed=200)
    other.model.store.pages = bench.model.store.pages
    assert serve(other, "second", [*prompt, *MORE]) == 800


def test_wrong_pages_are_discarded_in_every_group() -> None:
    bench = new_bench(num_pages=64, windowed=30, write_through=True)
    serve(bench, "first", PROMPT)
    stored, cache = bench.model.store, bench.cache
    assert cache.keys is not None
    page_keys = cache.keys.compute("", b"".join(t.to_bytes(4, "little") for t in PROMPT))
    stored.discard(DiscardPages("", page_keys, cache.keys.name_others(page_keys)))
    assert not stored.pages


@settings(max_examples=60, deadline=None)
@given(
    turns=st.lists(
        st.tuples(st.sampled_from(CONVERSATIONS), st.integers(1, 60), st.integers(1, 8), st.booleans()),
        min_size=4,
        max_size=24,
    ),
    pages=st.integers(20, 60),
    windowed=st.integers(14, 30),
    reaches=st.sampled_from([(WINDOW,), (Reach(10, in_chunks=True),), (Reach(5), Reach(14))]),
    most_stored=st.sampled_from([8, 30, 1000]),
    host_pages=st.sampled_from([4, 100]),
    write_through=st.booleans(),
)
def test_in_any_history_replies_are_those_of_the_request_alone(
    turns: Sequence[tuple[list[int], int, int, bool]],
    pages: int,
    windowed: int,
    reaches: tuple[Reach, ...],
    most_stored: int,
    host_pages: int,
    write_through: bool,
) -> None:
    bench = SchedulerBench(
        pages,
        slots=3,
        windows=[(reach, windowed) for reach in reaches],
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
    assert not bench.model.store.held
