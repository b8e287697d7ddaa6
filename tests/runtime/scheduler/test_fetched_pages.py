"""Look-ups and fetches from the page store for waiting prompts."""

from __future__ import annotations

import pytest
from arbora.runtime.messages import Abort, EndFetch, FindPages, PagesFound
from arbora.runtime.scheduler.rank import Rank
from arbora.runtime.scheduler.request import Request
from evicted_prompts import PROMPT, evict_all, with_evicted_prompt
from fake_model import long_reply_prompt, reply_alone
from scheduler_bench import SchedulerBench


def test_a_request_that_waits_for_the_store_delays_no_others() -> None:
    bench = with_evicted_prompt()
    bench.submit("again", PROMPT, max_tokens=1)
    bench.submit("other", [3, 1, 4, 1], max_tokens=1)  # no full page to ask for
    while bench.plan():
        bench.step()
    assert bench.finish("other") == "length"
    assert bench.finish("again") is None
    bench.run()
    assert bench.finish("again") == "length"


def test_pages_that_the_tree_lost_meanwhile_are_looked_up_too() -> None:
    bench = SchedulerBench(num_pages=16, page_size=4, most_stored=1000)
    bench.submit("first", PROMPT, max_tokens=1)
    bench.run()
    bench.submit("fill", long_reply_prompt(28, 4, salt=3), max_tokens=1, namespace="fill")
    bench.run()  # takes the last pages of the first prompt
    bench.submit("again", PROMPT, max_tokens=1)
    [fetch] = bench.model.store.asked
    assert isinstance(fetch, FindPages)
    bench.answer_fetches()
    assert 0 < len(bench.model.store.held[fetch.fetch][0]) < 9
    bench.submit("rest", long_reply_prompt(60, 4, salt=4), max_tokens=1, namespace="rest", priority=-1)
    bench.run()
    assert bench.tokens("again") == reply_alone(PROMPT, 1)
    assert bench.cached("again") == 36
    assert not bench.model.store.held


def test_pages_fetched_after_the_end_are_freed() -> None:
    bench = with_evicted_prompt()
    bench.submit("again", PROMPT, max_tokens=1)
    bench.handle(Abort("again"))
    bench.submit("other", [3, 1, 4, 1, 5], max_tokens=1)
    bench.run()
    assert not bench.model.store.held


def test_a_refused_request_leaves_no_state() -> None:
    bench = with_evicted_prompt()
    bench.submit("again", PROMPT, max_tokens=1, grammar="bad")
    bench.answer_fetches()
    bench.compiler.finish_all()
    bench.update()
    bench.submit("other", [3, 1, 4, 1, 5], max_tokens=1)
    bench.run()
    assert bench.refused["again"].code == "invalid_grammar"
    assert not bench.model.store.held


def test_at_the_end_the_store_releases_pages_that_no_request_restores() -> None:
    bench = with_evicted_prompt()
    bench.submit("again", PROMPT, max_tokens=1)
    bench.answer_fetches()
    bench.handle(Abort("again"))
    bench.drain()
    bench.answer_fetches()
    assert not bench.model.store.held


def with_stored_prompts(host_pages: int) -> SchedulerBench:
    """A running row, and six prompts with nine stored pages each for the second slot."""
    bench = SchedulerBench(num_pages=32, page_size=4, slots=2, most_stored=1000, host_pages=host_pages)
    for salt in range(6):
        bench.submit(f"first{salt}", prompt_of(salt), max_tokens=1)
    evict_all(bench)
    bench.submit("stream", [1, 2, 3], max_tokens=80, namespace=None)
    bench.plan()
    return bench


def prompt_of(salt: int) -> list[int]:
    return [60 - salt, *PROMPT[1:]]


@pytest.mark.parametrize(("host_pages", "most"), [(1000, 54), (40, 18), (4, 9)])
def test_at_most_half_of_host_memory_is_fetched_ahead(host_pages: int, most: int) -> None:
    bench = with_stored_prompts(host_pages)
    for salt in range(6):
        bench.submit(f"again{salt}", prompt_of(salt), max_tokens=20)
    bench.answer_fetches()
    assert bench.model.store.held_pages == most
    while bench.finish("again5") is None:
        bench.plan()
        bench.answer_fetches()
        assert bench.model.store.held_pages <= most + 9  # and what the next one in turn asked for
        bench.step()
    for salt in range(6):
        assert bench.cached(f"again{salt}") == 36
        assert bench.tokens(f"again{salt}") == reply_alone(prompt_of(salt), 20)
    bench.run()
    assert not bench.model.store.held
    assert bench.scheduler._stored._held_pages == 0


def test_fetching_ahead_ranks_each_request_once() -> None:
    bench = with_stored_prompts(host_pages=1000)
    for salt in range(6):
        bench.submit(f"again{salt}", prompt_of(salt), max_tokens=1)
    for answer in bench.model.store.answer():
        assert isinstance(answer, PagesFound)
        bench.handle(answer)
    ordered: list[str] = []

    def order(request: Request) -> int:
        ordered.append(request.id)
        return request.arrival

    bench.scheduler._stored.fetch_ahead(order)
    assert sorted(ordered) == sorted(asked_for(bench)) == [f"again{salt}" for salt in range(6)]


def asked_for(bench: SchedulerBench) -> set[str]:
    return {
        request.id
        for request in bench.scheduler._requests.open
        if request.stored.fetch and request.stored.fetch.requested
    }


def test_pages_are_fetched_in_the_order_of_requests_and_always_for_one_that_could_start() -> None:
    bench = with_stored_prompts(host_pages=20)
    bench.submit("blocking", [4, 5, 6], max_tokens=10, namespace=None)
    bench.plan()
    for salt in range(5):
        bench.submit(f"again{salt}", prompt_of(salt), max_tokens=1, priority=1)
    bench.answer_fetches()
    bench.submit("urgent", prompt_of(5), max_tokens=1, priority=0)
    bench.answer_fetches()
    assert asked_for(bench) == {"again0"}
    while bench.finish("blocking") is None:
        bench.plan()
        bench.step()
    bench.plan()
    assert asked_for(bench) == {"urgent"}
    bench.run()
    order = list(bench.outputs)
    assert order.index("urgent") < order.index("again1")
    assert bench.cached("urgent") == 36
    assert not bench.model.store.held


def test_an_aborted_requests_pages_are_not_fetched() -> None:
    bench = with_evicted_prompt()
    for rounds in range(3):
        bench.submit("again", PROMPT, max_tokens=1)
        bench.answer_fetches(rounds)
        bench.handle(Abort("again"))
        assert isinstance(bench.model.store.asked[-1], EndFetch)
        bench.answer_fetches()
        assert not bench.model.store.held
        assert not bench.model.store.found


def test_requests_that_wait_for_the_store_are_not_tried_in_each_step() -> None:
    bench = with_evicted_prompt()
    for number in range(20):
        bench.submit(f"again{number}", PROMPT, max_tokens=1)
    looked_up = []
    match = bench.cache.match
    bench.cache.match = lambda *of, **more: looked_up.append(of) or match(*of, **more)  # type: ignore
    bench.plan()
    assert looked_up == []
    bench.run()
    assert bench.finish("again19") == "length"


def test_no_look_up_for_a_prompt_without_namespace_or_one_that_must_be_computed() -> None:
    bench = with_evicted_prompt()
    bench.submit("private", PROMPT, max_tokens=1, namespace=None)
    bench.submit("scored", PROMPT, max_tokens=1, prompt_logprobs=0)
    bench.submit("short", [1, 2, 3, 4], max_tokens=1)
    assert bench.model.store.asked == []
    bench.run()


def test_the_next_fetch_is_not_considered_until_something_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = with_stored_prompts(host_pages=40)
    for salt in range(6):
        bench.submit(f"again{salt}", prompt_of(salt), max_tokens=20)
    bench.answer_fetches()
    queue = bench.scheduler._requests.waiting
    ranked = []
    rank = queue.rank

    def spy(request: Request) -> Rank:
        ranked.append(request.id)
        return rank(request)

    monkeypatch.setattr(queue, "rank", spy)
    bench.update()
    assert ranked == []
    fetched = next(iter(asked_for(bench)))
    bench.handle(Abort(fetched))
    bench.update()
    assert ranked
