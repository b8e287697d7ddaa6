"""Pages that the page store saves: evicted ones, computed ones, and the rest at the end."""

from __future__ import annotations

import pytest
from arbora.radix_cache import PrefixCache
from arbora.runtime.messages import PREFILL_CLIENT, CacheDropped, DropCache, FlushPages, RowError
from arbora.runtime.scheduler import page_saver
from arbora.runtime.scheduler.budget import FIRST_CHUNK
from arbora.runtime.scheduler.page_saver import SAVED_TOKENS
from arbora.runtime.scheduler.stored_pages import StoredPages
from evicted_prompts import BIG, LONG, PROMPT, evict_all
from fake_model import long_reply_prompt, pack, reply_alone, unpack
from scheduler_bench import SchedulerBench


def flushed_namespaces(stored: StoredPages) -> list[str]:
    stored.flush()
    message = stored.take_messages_to_model()[-1]
    assert isinstance(message, FlushPages)
    return [pages.namespace for pages in message.saves]


def test_evicted_pages_of_a_dropped_namespace_are_not_saved() -> None:
    cache = PrefixCache(2, 4, model=b"model")
    lock = cache.acquire(cache.match("a", pack([1, 2, 3, 4]), 4))
    assert cache.extend(lock, 4)
    cache.release(lock, pack([1, 2, 3, 4]))
    other = cache.acquire(cache.match("a", b""))
    assert cache.extend(other, 8)
    stored = StoredPages(cache, host_pages=8)
    stored.forget(DropCache(0, 1, "b", None), CacheDropped(1, 0, 0), [])
    assert flushed_namespaces(stored) == ["a"]
    cache.release(other, pack([1, 2, 3, 4]))
    assert cache.extend(cache.acquire(cache.match(None, b"")), 8)
    stored.forget(DropCache(0, 1, "a", None), CacheDropped(1, 0, 0), [])
    assert flushed_namespaces(stored) == []


def test_pages_without_a_namespace_are_not_saved() -> None:
    bench = SchedulerBench(num_pages=16, page_size=4, most_stored=1000)
    bench.submit("private", PROMPT, max_tokens=4, namespace=None)
    bench.run()
    evict_all(bench)
    bench.drain()
    assert {namespace for namespace, _ in bench.model.store.pages.values()} == {"big"}


def saved_pages(bench: SchedulerBench) -> int:
    """How many pages the oldest planned step copies out before it runs."""
    return sum(len(unpack(part.pages)) for part in bench.model.plans[0].saves)


def test_evicted_pages_are_copied_over_several_steps_before_they_are_overwritten() -> None:
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


def test_with_write_through_pages_are_saved_some_at_a_time_while_they_are_computed() -> None:
    bench = with_write_through()
    bench.answer_fetches()
    computed, counts = 0, set()
    while bench.finish("first") is None:
        bench.plan()
        before, computed = computed, bench.scheduler._requests._open["first"].allocation.planned
        assert before < computed <= before + FIRST_CHUNK
        bench.step()
        saved = len(bench.model.store.pages)
        assert saved <= computed // 4 < saved + SAVED_TOKENS // 4 or bench.finish("first")
        counts.add(saved)
    assert len(counts) <= 3
    bench.run()
    assert len(bench.model.store.pages) == 919 // 4


@pytest.mark.parametrize("first", [0, 100])
def test_a_prompt_for_another_server_is_saved_as_it_is_computed_even_if_the_tree_has_it(first: int) -> None:
    bench = SchedulerBench(num_pages=500, page_size=4, most_stored=1000)
    bench.submit("usual", LONG, max_tokens=1)
    bench.run()
    assert not bench.model.store.pages
    bench.submit("computed", [*LONG, *range(1, 100)], max_tokens=1, saved_from=first, client=PREFILL_CLIENT)
    bench.run()
    assert len(bench.model.store.pages) == bench.model.store.saved == 999 // 4 - first


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


def test_with_write_through_the_store_learns_which_pages_were_used() -> None:
    bench = with_write_through()
    bench.run()
    keys = list(bench.model.store.pages)
    bench.submit("again", LONG[:600], max_tokens=1)
    bench.run()
    assert bench.model.store.used == [keys, keys[:150]]


def test_with_write_through_private_and_faulty_pages_are_not_kept() -> None:
    bench = SchedulerBench(num_pages=64, page_size=4, most_stored=1000, write_through=True)
    bench.submit("private", PROMPT, max_tokens=4, namespace=None)
    bench.run()
    assert not bench.model.store.pages
    bench.submit("wrong", PROMPT, max_tokens=4)
    bench.answer_fetches()
    bench.plan()
    slot = bench.model.plans[0].rows[0].slot
    result = bench.model.run_step()
    result.errors = [RowError(slot, "not_a_number", "not a number")]
    bench.handle(result)
    bench.run()
    assert not bench.model.store.pages


def test_evicted_pages_of_a_faulty_request_are_not_saved_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_saver, "SAVED_TOKENS", 4)
    bench = SchedulerBench(num_pages=16, page_size=4, most_stored=1000)
    bench.submit("first", PROMPT, max_tokens=4)
    first = bench.scheduler._requests.find("first")
    assert first is not None
    bench.run()
    bench.submit("big", long_reply_prompt(56, 4, salt=5), max_tokens=4, namespace="big")
    bench.answer_fetches()
    bench.budget.prefill_tokens = lambda *_: 24  # type: ignore[method-assign]
    bench.plan()
    assert 0 < sum(len(save.keys) for save in bench.model.plans[0].saves) < 16 * 9  # others still wait
    bench.step()
    bench.scheduler._stored.discard(first)
    bench.run()
    assert bench.tokens("big") == reply_alone(long_reply_prompt(56, 4, salt=5), 4)
    assert not bench.model.store.pages


def test_without_write_through_nothing_is_saved_before_it_is_evicted() -> None:
    bench = SchedulerBench(num_pages=64, page_size=4, most_stored=1000)
    bench.submit("first", PROMPT, max_tokens=4)
    bench.run()
    assert not bench.model.store.pages


def test_at_the_end_the_store_gets_all_cached_pages_in_a_usable_order() -> None:
    bench = SchedulerBench(num_pages=32, page_size=4, most_stored=1000)
    bench.submit("first", PROMPT, max_tokens=4)
    bench.run()
    bench.submit("branch", [*PROMPT[:20], *reversed(PROMPT[:20])], max_tokens=4)
    bench.run()
    assert bench.cache.keys is not None
    told = [pages.keys for pages in bench.cache.keys.list_pages()]
    bench.drain()
    assert len(b"".join(told)) // 16 == len(bench.model.store.pages) == 15
    restarted = SchedulerBench(num_pages=32, page_size=4, most_stored=1000)
    restarted.model.store.pages = bench.model.store.pages
    restarted.submit("again", [*PROMPT[:20], *reversed(PROMPT[:20])], max_tokens=8)
    restarted.run()
    assert restarted.cached("again") == 36
    assert restarted.tokens("again") == reply_alone([*PROMPT[:20], *reversed(PROMPT[:20])], 8)


def test_without_a_store_nothing_is_asked_and_nothing_is_saved() -> None:
    bench = SchedulerBench(num_pages=16, page_size=4)
    bench.submit("first", PROMPT, max_tokens=4)
    bench.run()
    evict_all(bench)
    assert bench.model.store.pages == {}
    assert bench.model.store.asked == []
