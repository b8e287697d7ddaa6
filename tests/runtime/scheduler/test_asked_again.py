"""Pages that were missing when a prompt was queued are looked up again when it could start."""

from __future__ import annotations

import pytest
from arbora.radix_cache import KeyedPages
from arbora.runtime.messages import Abort, FindPages
from arbora.runtime.scheduler.evicted_pages import EvictedPages
from arbora.runtime.scheduler.stored_pages import MAX_LOOKUPS
from evicted_prompts import BIG, LONG, PROMPT, with_evicted_prompt
from fake_model import pack, reply_alone
from scheduler_bench import SchedulerBench


def with_long_prompt(slots: int = 8, pages: int = 250) -> SchedulerBench:
    bench = SchedulerBench(num_pages=pages, page_size=4, most_stored=1000, slots=slots)
    bench.submit("first", LONG, max_tokens=1)
    bench.run()
    return bench


def test_pages_in_copy_when_a_prompt_is_queued_are_restored_when_it_starts() -> None:
    bench = with_long_prompt()
    bench.submit("big", BIG, max_tokens=1, namespace="big")
    bench.answer_fetches()
    bench.plan()
    bench.step()  # a part of what was evicted is stored by now
    assert 0 < len(bench.model.store.pages) < 225
    bench.submit("again", LONG, max_tokens=1)
    bench.run()
    assert bench.cached("again") == 896
    assert bench.tokens("again") == reply_alone(LONG, 1)


def test_pages_that_the_tree_lost_since_a_prompt_was_queued_are_restored() -> None:
    bench = with_long_prompt(slots=1)
    bench.submit("big", BIG, max_tokens=1, namespace="big", priority=0)
    bench.submit("again", LONG, max_tokens=1, priority=1)
    assert not [asked for asked in bench.model.store.asked if asked.namespace == ""]  # type: ignore[union-attr]
    bench.run()
    assert bench.cached("again") == 896
    assert bench.tokens("again") == reply_alone(LONG, 1)


def test_a_request_that_could_start_waits_until_its_evicted_pages_are_copied() -> None:
    bench = with_long_prompt(pages=260)
    bench.submit("stream", [1, 2, 3], max_tokens=20, namespace=None)
    bench.submit("big", BIG, max_tokens=1, namespace=None)
    bench.plan()
    bench.handle(Abort("big"))
    bench.step()  # its pages are free again, and most of them not copied out
    assert bench.cache.match("", pack(LONG)).length < 4 * (225 - len(bench.model.store.pages))
    bench.submit("again", LONG, max_tokens=1)
    bench.run()
    assert bench.cached("again") == 896
    assert bench.tokens("again") == reply_alone(LONG, 1)


def test_no_request_waits_for_pages_that_no_step_copies() -> None:
    bench = with_long_prompt()
    evicting = bench.cache.acquire(bench.cache.match(None, b""))
    assert bench.cache.extend(evicting, 250 * bench.cache.page_size)  # evicts all, and nothing runs
    bench.cache.release(evicting, b"")
    bench.submit("again", LONG, max_tokens=1)
    bench.run()
    assert bench.tokens("again") == reply_alone(LONG, 1)


def test_pages_that_are_evicted_again_and_again_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = with_evicted_prompt()
    bench.submit("head", PROMPT[:12], max_tokens=1)
    bench.run()
    bench.submit("again", PROMPT, max_tokens=1)
    asked = []
    match = bench.cache.match
    monkeypatch.setattr(bench.cache, "match", lambda *of: match(*of)._replace(paged=0))
    for _ in range(100):
        asked += [message for message in bench.model.store.asked if isinstance(message, FindPages)]
        bench.answer_fetches(rounds=1)
        if bench.plan():
            bench.step()
    assert bench.tokens("again") == reply_alone(PROMPT, 1)
    assert len(asked) == MAX_LOOKUPS
    assert not bench.model.store.held


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def evicted(namespace: str, *numbers: int) -> KeyedPages:
    return KeyedPages(namespace, b"".join(map(key, numbers)), list(numbers))


def test_evicted_pages_are_copied_out_when_they_are_due_and_a_few_before_the_last_of_a_prefix_first() -> None:
    pages = EvictedPages()
    pages.add([evicted("a", 13, 14, 15), evicted("a", 11, 12), evicted("b", 20)])
    assert pages.take([(0, 20), (0, 12), (1, 13)], most=4) == [evicted("b", 20), evicted("a", 12, 14, 15)]
    assert pages.take([], most=1) == [evicted("a", 13)]
    assert (len(pages), key(11) in pages, key(13) in pages) == (1, True, False)


def test_awaited_pages_are_copied_before_others_in_their_order() -> None:
    pages = EvictedPages()
    pages.add([evicted("b", 20, 21), evicted("a", 13, 14), evicted("a", 11, 12)])
    pages.prioritize([key(number) for number in (10, 11, 12, 13)])
    assert pages.take([], most=2) == [evicted("a", 11, 12)]
    assert pages.take([], most=2) == [evicted("a", 13), evicted("b", 21)]


def test_a_page_that_was_evicted_twice_is_known_until_its_last_copy_is_taken() -> None:
    pages = EvictedPages()
    pages.add([KeyedPages("a", key(1), [5]), KeyedPages("a", key(1), [6])])
    pages.take([(0, 5)], most=1)
    assert key(1) in pages
    pages.take([(0, 6)], most=1)
    assert key(1) not in pages
