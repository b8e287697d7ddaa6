"""Pages that the cache gives up come back from the page store instead of being computed again."""

from __future__ import annotations

import pytest
from arbora.radix_cache import PrefixCache
from arbora.runtime.messages import CacheDropped, DropCache, EndFetch, FindPages, RowError
from arbora.runtime.scheduler.budget import FIRST_CHUNK, FIRST_RESTORE
from arbora.runtime.scheduler.page_saver import SAVED_TOKENS
from arbora.runtime.scheduler.request import Request
from arbora.runtime.scheduler.stored_pages import StoredPages
from fake_model import long_reply_prompt, pack, reply_alone, unpack
from scheduler_bench import SchedulerBench

PROMPT = long_reply_prompt(40, 20)


def evict_all(bench: SchedulerBench) -> None:
    """Runs a request that needs every page."""
    pages = bench.cache.stats().total
    big = long_reply_prompt(pages * bench.cache.page_size - 4, 4, salt=5)
    bench.submit("big", big, max_tokens=1, namespace="big")
    bench.run()
    assert bench.cache.matched("", b"".join(t.to_bytes(4, "little") for t in PROMPT)) == 0


def with_evicted_prompt() -> SchedulerBench:
    bench = SchedulerBench(num_pages=16, page_size=4, most_stored=1000)
    bench.submit("first", PROMPT, max_tokens=4)
    bench.run()
    evict_all(bench)
    return bench


def test_an_evicted_prompt_is_restored_and_not_computed() -> None:
    bench = with_evicted_prompt()
    computed = bench.scheduler.stats().prompt_tokens_computed
    bench.submit("again", PROMPT, max_tokens=8)
    bench.run()
    assert bench.tokens("again") == reply_alone(PROMPT, 8)
    assert bench.cached("again") == 36  # all full pages but the last, whose last token must be computed
    assert bench.scheduler.stats().prompt_tokens_computed == computed + 4
    assert bench.model.store.restored == 9
    assert not bench.model.store.held


LONG = long_reply_prompt(900, 20)
BIG = long_reply_prompt(996, 4, salt=5)


def with_long_evicted_prompt() -> SchedulerBench:
    bench = SchedulerBench(num_pages=250, page_size=4, most_stored=1000)
    bench.submit("first", LONG, max_tokens=1)
    bench.run()
    bench.submit("big", BIG, max_tokens=1, namespace="big")
    bench.run()
    return bench


def restored_pages(bench: SchedulerBench) -> list[int]:
    """How many the next steps restore, each."""
    return [sum(len(unpack(part.pages)) for part in plan.restores) for plan in bench.model.plans]


def test_a_long_prefix_is_restored_over_several_steps_while_streams_go_on() -> None:
    bench = with_long_evicted_prompt()
    bench.submit("stream", [1, 2, 3], max_tokens=20, namespace=None)
    bench.plan()
    bench.submit("again", LONG, max_tokens=8)
    bench.answer_fetches()
    restored = []
    while bench.finish("again") is None:
        bench.plan()
        restored.append(restored_pages(bench)[-1])
        streaming = len(bench.tokens("stream"))
        bench.step()
        assert len(bench.tokens("stream")) == streaming + 1 or bench.finish("stream")
    assert max(restored) * 4 == FIRST_RESTORE
    assert sum(restored) == bench.model.store.restored == 224
    assert bench.cached("again") == 896
    assert bench.tokens("again") == reply_alone(LONG, 8)


def test_what_a_running_request_restores_is_not_restored_for_another_too() -> None:
    bench = with_long_evicted_prompt()
    bench.submit("again", LONG, max_tokens=1)
    bench.submit("third", [*LONG, 7, 8], max_tokens=1)
    bench.run()
    assert bench.model.store.restored == 225
    assert bench.cached("third") == 900
    assert bench.tokens("third") == reply_alone([*LONG, 7, 8], 1)
    assert not bench.model.store.held


def test_who_ends_before_all_is_restored_leaves_nothing_behind() -> None:
    bench = with_long_evicted_prompt()
    bench.submit("again", LONG, max_tokens=1)
    bench.answer_fetches()
    bench.plan()
    bench.scheduler.drop("again")
    bench.step()
    bench.submit("other", [3, 1, 4, 1, 5], max_tokens=1)
    bench.run()
    assert bench.model.store.restored * 4 == FIRST_RESTORE
    assert not bench.model.store.held
    assert bench.scheduler.stats().pages_used == 0


def test_who_starts_next_waits_until_there_is_room_to_restore() -> None:
    bench = with_long_evicted_prompt()
    bench.submit("bigger", [*BIG[1:], 9], max_tokens=1, namespace="bigger")
    bench.run()
    bench.submit("long", LONG[:640], max_tokens=1)
    bench.submit("next", BIG[:200], max_tokens=1, namespace="big")
    bench.submit("new", [7] * 9, max_tokens=1)
    bench.answer_fetches()
    bench.plan()
    assert restored_pages(bench) == [FIRST_RESTORE // 4]
    assert {request.id for request in bench.scheduler._active()} == {"long", "new"}
    bench.run()
    assert bench.cached("next") == 196


def test_restored_pages_are_in_the_tree_for_the_next_request() -> None:
    bench = with_evicted_prompt()
    bench.submit("again", PROMPT, max_tokens=1)
    bench.run()
    bench.submit("third", PROMPT, max_tokens=1)
    bench.run()
    assert bench.cached("third") == 39
    assert bench.model.store.restored == 9


def test_who_waits_for_the_store_holds_up_nobody() -> None:
    bench = with_evicted_prompt()
    bench.submit("again", PROMPT, max_tokens=1)
    bench.submit("other", [3, 1, 4, 1], max_tokens=1)  # no full page to ask for
    while bench.plan():
        bench.step()
    assert bench.finish("other") == "length"
    assert bench.finish("again") is None
    bench.run()
    assert bench.finish("again") == "length"


def test_what_the_tree_lost_meanwhile_is_asked_for_too() -> None:
    bench = SchedulerBench(num_pages=16, page_size=4, most_stored=1000)
    bench.submit("first", PROMPT, max_tokens=1)
    bench.run()
    bench.submit("fill", long_reply_prompt(28, 4, salt=3), max_tokens=1, namespace="fill")
    bench.run()  # takes the last pages of the first prompt
    bench.submit("again", PROMPT, max_tokens=1)
    [fetch] = bench.model.store.asked
    assert isinstance(fetch, FindPages)
    bench.answer_fetches()
    assert 0 < len(bench.model.store.held[fetch.fetch]) < 9
    bench.submit("rest", long_reply_prompt(60, 4, salt=4), max_tokens=1, namespace="rest", priority=-1)
    bench.run()
    assert bench.tokens("again") == reply_alone(PROMPT, 1)
    assert bench.cached("again") == 36
    assert not bench.model.store.held


def test_a_request_that_ends_before_its_first_step_leaves_nothing_behind() -> None:
    bench = with_evicted_prompt()
    bench.submit("again", PROMPT, max_tokens=1)
    bench.answer_fetches()
    bench.scheduler.drop("again")
    bench.submit("other", [3, 1, 4, 1, 5], max_tokens=1)
    bench.run()
    assert bench.model.store.restored == 0
    assert not bench.model.store.held
    assert bench.scheduler.stats().pages_used == 0


def test_an_answer_that_comes_after_the_end_is_given_back() -> None:
    bench = with_evicted_prompt()
    bench.submit("again", PROMPT, max_tokens=1)
    bench.scheduler.drop("again")
    bench.submit("other", [3, 1, 4, 1, 5], max_tokens=1)
    bench.run()
    assert not bench.model.store.held


def test_a_request_that_is_refused_leaves_nothing_behind() -> None:
    bench = with_evicted_prompt()
    bench.submit("again", PROMPT, max_tokens=1, grammar="bad")
    bench.answer_fetches()
    bench.compiler.finish_all()
    bench.scheduler.take_grammars()
    bench.submit("other", [3, 1, 4, 1, 5], max_tokens=1)
    bench.run()
    assert bench.refused["again"].code == "invalid_grammar"
    assert not bench.model.store.held


def started_but_not_planned(bench: SchedulerBench) -> Request:
    """A request that has its slot and what is to be restored, but no row in a step yet."""
    bench.submit("again", PROMPT, max_tokens=8)
    bench.answer_fetches()
    bench.scheduler._admit()
    request = bench.scheduler._open["again"]
    assert request.residence.restoring
    return request


def test_who_is_put_back_before_its_first_step_holds_one_fetch() -> None:
    bench = with_evicted_prompt()
    request = started_but_not_planned(bench)
    bench.scheduler._retract(request)
    bench.deliver()
    bench.run()
    assert bench.tokens("again") == reply_alone(PROMPT, 8)
    assert bench.cached("again") == 36
    assert not bench.model.store.held


def test_what_a_started_request_restores_outlives_a_dropped_namespace() -> None:
    bench = with_evicted_prompt()
    request = started_but_not_planned(bench)
    bench.control(DropCache(0, 1, "", ""))
    assert request.fetch is not None
    bench.run()
    assert bench.tokens("again") == reply_alone(PROMPT, 8)
    assert not bench.model.store.held


def test_at_the_end_the_store_lets_go_of_what_nobody_restores() -> None:
    bench = with_evicted_prompt()
    bench.submit("again", PROMPT, max_tokens=1)
    bench.answer_fetches()
    bench.scheduler.drop("again")
    bench.scheduler.flush()
    bench.deliver()
    bench.answer_fetches()
    assert not bench.model.store.held


def with_stored_prompts(host_pages: int) -> SchedulerBench:
    """A row that goes on, and six prompts of which nine pages each are stored, for one more slot."""
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
def test_ahead_of_turns_no_more_is_fetched_than_half_of_host_memory(host_pages: int, most: int) -> None:
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


def asked_for(bench: SchedulerBench) -> set[str]:
    return {request.id for request in bench.scheduler._open.values() if request.fetch and request.fetch.asked}


def test_who_goes_first_is_fetched_first_and_at_its_turn_room_or_not() -> None:
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


def test_what_an_aborted_request_asked_for_is_not_brought() -> None:
    bench = with_evicted_prompt()
    for rounds in range(3):
        bench.submit("again", PROMPT, max_tokens=1)
        bench.answer_fetches(rounds)
        bench.scheduler.drop("again")
        bench.deliver()
        assert isinstance(bench.model.store.asked[-1], EndFetch)
        bench.answer_fetches()
        assert not bench.model.store.held
        assert not bench.model.store.found


def test_who_waits_for_the_store_is_not_looked_at_in_each_step() -> None:
    bench = with_evicted_prompt()
    for number in range(20):
        bench.submit(f"again{number}", PROMPT, max_tokens=1)
    looked_up = []
    matched = bench.cache.matched
    bench.cache.matched = lambda *of: looked_up.append(of) or matched(*of)  # type: ignore
    bench.plan()
    assert looked_up == []
    bench.run()
    assert bench.finish("again19") == "length"


def test_evicted_pages_of_a_dropped_namespace_are_not_saved() -> None:
    cache = PrefixCache(2, 4, model=b"model")
    lease = cache.acquire("a", pack([1, 2, 3, 4]), 4)
    cache.release(lease, pack([1, 2, 3, 4]), cache.allocate(1) or [])
    held = cache.allocate(2)
    assert held is not None
    stored = StoredPages(cache, host_pages=8)
    stored.forget(DropCache(0, 1, "b", None), CacheDropped(1, 0, 0), [])
    assert [pages.namespace for pages in stored.flush().saves] == ["a"]
    lease = cache.acquire("a", pack([1, 2, 3, 4]), 4)
    cache.release(lease, pack([1, 2, 3, 4]), held[:1])
    assert cache.allocate(1) is not None
    stored.forget(DropCache(0, 1, "a", None), CacheDropped(1, 0, 0), [])
    assert stored.flush().saves == []


def test_what_led_to_no_number_is_not_restored_for_others() -> None:
    bench = with_evicted_prompt()
    bench.submit("again", PROMPT, max_tokens=4)
    bench.answer_fetches()
    assert bench.plan()
    result = bench.model.run_step()
    result.errors = [RowError(unpack(result.slots)[0], "not_a_number", "not a number")]
    bench.scheduler.apply(result)
    bench.deliver()
    bench.run()
    assert bench.finish("again") == "error"
    bench.submit("third", PROMPT, max_tokens=4)
    bench.run()
    assert bench.cached("third") == 0
    assert bench.tokens("third") == reply_alone(PROMPT, 4)


def test_what_is_restored_replaces_the_copy_of_a_page_that_matches_in_part() -> None:
    bench = with_evicted_prompt()
    bench.submit("near", [*PROMPT[:10], 0, 0, 0, 0, 0, 0], max_tokens=1)
    bench.run()
    bench.submit("again", PROMPT, max_tokens=8)
    bench.run()
    assert bench.tokens("again") == reply_alone(PROMPT, 8)
    assert bench.cached("again") == 36


def test_a_dropped_namespace_is_gone_from_the_store_and_from_those_who_wait() -> None:
    bench = with_evicted_prompt()
    bench.submit("again", PROMPT, max_tokens=1)
    bench.answer_fetches()
    bench.control(DropCache(0, 1, "", ""))
    bench.run()
    assert bench.tokens("again") == reply_alone(PROMPT, 1)
    assert bench.cached("again") == 0
    assert {namespace for namespace, _ in bench.model.store.pages.values()} <= {"big"}


def test_nothing_is_asked_for_a_prompt_that_may_not_be_found_or_must_be_computed() -> None:
    bench = with_evicted_prompt()
    bench.submit("private", PROMPT, max_tokens=1, namespace=None)
    bench.submit("scored", PROMPT, max_tokens=1, prompt_logprobs=0)
    bench.submit("short", [1, 2, 3, 4], max_tokens=1)
    assert bench.model.store.asked == []
    bench.run()


def test_pages_of_nobody_are_not_saved() -> None:
    bench = SchedulerBench(num_pages=16, page_size=4, most_stored=1000)
    bench.submit("private", PROMPT, max_tokens=4, namespace=None)
    bench.run()
    evict_all(bench)
    bench.scheduler.flush()
    bench.deliver()
    assert {namespace for namespace, _ in bench.model.store.pages.values()} == {"big"}


def saved_pages(bench: SchedulerBench) -> int:
    """How many the oldest planned step copies out before it runs."""
    return sum(len(unpack(part.pages)) for part in bench.model.plans[0].saves)


def test_what_is_evicted_is_copied_out_over_several_steps_before_it_is_overwritten() -> None:
    bench = SchedulerBench(num_pages=250, page_size=4, most_stored=1000)
    bench.submit("first", LONG, max_tokens=1)
    bench.run()
    bench.submit("big", BIG, max_tokens=1, namespace="big")
    bench.answer_fetches()
    most = SAVED_TOKENS // 4
    counts = []
    while bench.plan():
        counts.append(saved_pages(bench))
        bench.step()
    assert counts[0] == most
    assert max(counts) <= most + FIRST_CHUNK // 4
    assert sum(counts) == 225
    bench.submit("again", LONG, max_tokens=8)
    bench.run()
    assert bench.cached("again") == 896
    assert bench.tokens("again") == reply_alone(LONG, 8)


def with_write_through() -> SchedulerBench:
    bench = SchedulerBench(num_pages=250, page_size=4, most_stored=1000, write_through=True)
    bench.submit("first", LONG, max_tokens=20)
    return bench


def test_with_write_through_pages_are_saved_while_they_are_computed() -> None:
    bench = with_write_through()
    bench.answer_fetches()
    computed = 0
    while bench.finish("first") is None:
        bench.plan()
        before, computed = computed, bench.scheduler._open["first"].residence.planned
        assert before < computed <= before + FIRST_CHUNK
        bench.step()
        assert len(bench.model.store.pages) == computed // 4


def test_with_write_through_a_reply_is_saved_too_and_nothing_twice() -> None:
    bench = with_write_through()
    bench.run()
    assert len(bench.model.store.pages) == bench.model.store.saved == (900 + 19) // 4
    turn = [*LONG, *bench.tokens("first"), 7, 8, 9, 10]
    bench.submit("next", turn, max_tokens=1)
    bench.run()
    assert len(bench.model.store.pages) == bench.model.store.saved == 924 // 4
    restarted = SchedulerBench(num_pages=250, page_size=4, most_stored=1000)
    restarted.model.store.pages = bench.model.store.pages
    restarted.submit("again", turn, max_tokens=8)
    restarted.run()
    assert restarted.cached("again") == 920
    assert restarted.tokens("again") == reply_alone(turn, 8)


def test_with_write_through_the_store_knows_what_was_used_on_the_device() -> None:
    bench = with_write_through()
    bench.run()
    keys = list(bench.model.store.pages)
    bench.submit("again", LONG[:600], max_tokens=1)
    bench.run()
    assert bench.model.store.used == [keys, keys[:150]]


def test_with_write_through_what_is_private_or_wrong_is_not_kept() -> None:
    bench = SchedulerBench(num_pages=64, page_size=4, most_stored=1000, write_through=True)
    bench.submit("private", PROMPT, max_tokens=4, namespace=None)
    bench.run()
    assert not bench.model.store.pages
    bench.submit("wrong", PROMPT, max_tokens=4)
    bench.answer_fetches()
    bench.plan()
    result = bench.model.run_step()
    result.errors = [RowError(unpack(result.slots)[0], "not_a_number", "not a number")]
    bench.scheduler.apply(result)
    bench.deliver()
    bench.run()
    assert not bench.model.store.pages


def test_without_write_through_nothing_is_saved_before_it_is_evicted() -> None:
    bench = SchedulerBench(num_pages=64, page_size=4, most_stored=1000)
    bench.submit("first", PROMPT, max_tokens=4)
    bench.run()
    assert not bench.model.store.pages


def test_at_the_end_the_store_gets_all_that_the_cache_holds_in_an_order_it_can_use() -> None:
    bench = SchedulerBench(num_pages=32, page_size=4, most_stored=1000)
    bench.submit("first", PROMPT, max_tokens=4)
    bench.run()
    bench.submit("branch", [*PROMPT[:20], *reversed(PROMPT[:20])], max_tokens=4)
    bench.run()
    told = [pages.keys for pages in bench.cache.everything()]
    bench.scheduler.flush()
    bench.deliver()
    assert len(b"".join(told)) // 16 == len(bench.model.store.pages) == 15
    restarted = SchedulerBench(num_pages=32, page_size=4, most_stored=1000)
    restarted.model.store.pages = bench.model.store.pages
    restarted.submit("again", [*PROMPT[:20], *reversed(PROMPT[:20])], max_tokens=8)
    restarted.run()
    assert restarted.cached("again") == 36
    assert restarted.tokens("again") == reply_alone([*PROMPT[:20], *reversed(PROMPT[:20])], 8)


def test_who_is_put_back_may_be_restored_when_it_starts_again() -> None:
    bench = SchedulerBench(num_pages=16, page_size=4, most_stored=1000)
    prompts = [long_reply_prompt(24, 20, salt=salt) for salt in (1, 2)]
    for name, prompt in enumerate(prompts):
        bench.submit(f"r{name}", prompt, max_tokens=20)
    bench.run()
    assert bench.scheduler.stats().retractions > 0
    for name, prompt in enumerate(prompts):
        assert bench.tokens(f"r{name}") == reply_alone(prompt, 20)
    assert not bench.model.store.held


def test_without_a_store_nothing_is_asked_and_nothing_is_saved() -> None:
    bench = SchedulerBench(num_pages=16, page_size=4)
    bench.submit("first", PROMPT, max_tokens=4)
    bench.run()
    evict_all(bench)
    assert bench.model.store.pages == {}
    assert bench.model.store.asked == []
