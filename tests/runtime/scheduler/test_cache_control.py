"""Pins, reports and drops in the scheduler's state machine. Pages have four tokens."""

from __future__ import annotations

import pytest
from arbora.runtime.messages import (
    CacheDropped,
    CacheGroup,
    DropCache,
    ExplainPrompt,
    HitRate,
    ModelReady,
    PeerDown,
    PrefixPinned,
    PromptExplained,
    QueryRefused,
    UnpinPrefix,
)
from arbora.runtime.scheduler import process
from fake_model import EOS, pack, reply_alone, unpack
from scheduler_bench import SchedulerBench

DOCUMENT = list(range(1, 41))  # ten pages
OTHER = [60 - i for i in range(40)]


def served(bench: SchedulerBench, prompt: list[int], name: str = "warm", namespace: str | None = "") -> None:
    bench.submit(name, prompt, max_tokens=1, namespace=namespace)
    bench.run()


def pinned_bench(num_pages: int = 20) -> SchedulerBench:
    """A scheduler whose cache of twenty pages has the document pinned."""
    bench = SchedulerBench(num_pages, max_pinned=10)
    served(bench, DOCUMENT)
    assert isinstance(bench.pin(DOCUMENT), PrefixPinned)
    return bench


def replied_bench(prompt: list[int]) -> SchedulerBench:
    """A scheduler whose request has just been answered, while a step in flight still holds its pages."""
    bench = SchedulerBench(64)
    bench.submit("a", prompt, max_tokens=8)
    while not bench.finish("a"):
        while bench.plan():
            pass
        bench.step()
    assert bench.report().pages_used, "no step in flight holds pages of the request"
    return bench


def code(answer: object) -> str:
    assert isinstance(answer, QueryRefused), answer
    return answer.code


# Pins


def test_a_pinned_prefix_is_not_evicted() -> None:
    bench = pinned_bench()
    for number in range(5):
        served(bench, [100 + number, *OTHER[:-5]], f"other{number}")
    bench.submit("again", [*DOCUMENT, 99], max_tokens=1)
    bench.run()
    assert bench.cached("again") == 40


def test_a_pin_reports_its_pages_and_expiry() -> None:
    bench = SchedulerBench(20, max_pinned=10)
    served(bench, [*DOCUMENT, 7, 7])
    bench.now = 1000.0
    answer = bench.pin([*DOCUMENT, 7, 7], ttl_s=60)
    assert isinstance(answer, PrefixPinned)
    assert (answer.pin.tokens, answer.pin.pages, answer.pin.expires_at) == (40, 10, 1060.0)
    assert bench.report().pins == [answer.pin]
    assert bench.report().pages_pinned == 10


def test_a_pin_ends_with_its_time() -> None:
    bench = pinned_bench()
    assert bench.scheduler.max_wait_s(bench.now) == 60.0
    bench.wait(59.9)
    assert bench.report().pages_pinned == 10
    bench.wait(0.1)
    assert bench.report().pages_pinned == 0
    assert bench.report().pins == []
    assert bench.scheduler.max_wait_s(bench.now) is None


def test_a_prefix_that_is_pinned_again_keeps_its_name_and_gets_new_time() -> None:
    bench = pinned_bench()
    bench.now = 30.0
    again = bench.pin(DOCUMENT, ttl_s=60, name="another")
    assert isinstance(again, PrefixPinned)
    assert (again.pin.id, again.pin.expires_at) == ("p", 90.0)
    bench.wait(30.0)
    assert bench.report().pages_pinned == 10


def test_a_pin_can_be_removed_once_and_only_within_its_scope() -> None:
    bench = pinned_bench()
    assert code(bench.control(UnpinPrefix(0, 1, "p", "tenant/"))) == "pin_not_found"
    assert isinstance(bench.control(UnpinPrefix(0, 1, "p", "")), PrefixPinned)
    assert bench.report().pages_pinned == 0
    assert code(bench.control(UnpinPrefix(0, 1, "p", ""))) == "pin_not_found"


def test_pins_that_share_pages_count_them_once_and_keep_them_to_the_last() -> None:
    bench = pinned_bench()
    assert isinstance(bench.pin(DOCUMENT[:20], ttl_s=10, name="half"), PrefixPinned)
    assert bench.report().pages_pinned == 10
    bench.control(UnpinPrefix(0, 1, "p", ""))
    assert bench.report().pages_pinned == 5


def test_more_pages_than_the_quota_are_not_pinned() -> None:
    bench = SchedulerBench(20, max_pinned=9)
    served(bench, DOCUMENT)
    answer = bench.pin(DOCUMENT)
    assert code(answer) == "pin_quota_exceeded"
    assert isinstance(answer, QueryRefused) and answer.status == 409
    assert answer.message == (
        "The prefix takes 10 pages (40 tokens) more of the KV cache, but 9 pages (36 tokens) may be pinned "
        "in all, of which 0 are. Pin a shorter prefix, or start the server with a larger --pin-memory."
    )
    assert isinstance(bench.pin(DOCUMENT[:36]), PrefixPinned)


def test_a_pin_that_others_leave_no_pages_for_is_refused_with_how_to_end_them() -> None:
    bench = pinned_bench()
    served(bench, OTHER[:8])
    answer = bench.pin(OTHER[:8], name="another")
    assert isinstance(answer, QueryRefused)
    assert "2 pages (8 tokens) more" in answer.message and "of which 10 are" in answer.message
    assert "Unpin others (DELETE /cache/pin/ID), or start" in answer.message


def test_a_prefix_that_is_not_cached_to_its_end_is_not_pinned() -> None:
    bench = SchedulerBench(20, max_pinned=10)
    served(bench, DOCUMENT[:36])
    answer = bench.pin(DOCUMENT)
    assert code(answer) == "prefix_not_cached"
    assert isinstance(answer, QueryRefused) and "9 of the prefix's 10" in answer.message


def test_pages_that_an_open_request_may_need_are_not_pinned() -> None:
    bench = SchedulerBench(20, max_pinned=10)
    served(bench, DOCUMENT)
    bench.submit("large", OTHER[:20], max_tokens=40)
    assert code(bench.pin(DOCUMENT)) == "kv_cache_in_use"
    bench.run()
    assert bench.finish("large") == "length"


def test_without_a_prefix_cache_nothing_is_pinned() -> None:
    bench = SchedulerBench(20, prefix_cache=False, max_pinned=10)
    served(bench, DOCUMENT)
    assert code(bench.pin(DOCUMENT)) == "no_prefix_cache"


def test_a_request_that_only_fits_without_the_pins_is_refused_with_their_number() -> None:
    bench = pinned_bench()
    bench.submit("large", OTHER, max_tokens=4)
    refused = bench.refused["large"]
    assert refused.status == 400
    assert "10 of them pinned" in refused.message


@pytest.mark.parametrize("tail", range(5))
def test_a_request_that_begins_with_the_pinned_pages_may_fill_all_others(tail: int) -> None:
    bench = pinned_bench()
    served(bench, [*DOCUMENT, 8, 8, 8, 8, 8, 8, 8], "neighbour")
    prompt = [*DOCUMENT, *[8] * tail, 9]
    bench.submit("a", prompt, max_tokens=39 - tail, ignore_eos=True)
    bench.run()
    assert not bench.refused
    assert bench.finish("a") == "length"
    assert len(bench.tokens("a")) == 39 - tail


def test_a_request_that_may_not_read_the_cache_has_no_use_of_the_pinned_pages() -> None:
    bench = pinned_bench()
    bench.submit("opted out", [*DOCUMENT, 9], max_tokens=8, namespace=None)
    bench.submit("recomputed", [*DOCUMENT, 9], max_tokens=8, prompt_logprobs=0)
    assert bench.refused.keys() == {"opted out", "recomputed"}


def test_a_quota_over_the_whole_cache_is_logged_and_cut_to_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ready = ModelReady([CacheGroup(2, None, 64, 1024)], 16, 256, 8, 512, "cpu")
    assert process._pinnable(ready, 64 * 1024) == 64
    assert caplog.messages == []
    assert process._pinnable(ready, 1 << 20) == 64
    (told,) = caplog.messages
    assert "--pin-memory 1MiB: the KV cache has only 64KiB" in told


# Reports


def test_a_report_counts_every_page_once() -> None:
    bench = pinned_bench()
    bench.submit("a", [*DOCUMENT, 5, 6, 7], max_tokens=8)
    bench.plan()
    report = bench.report()
    assert report.pages_total == report.pages_free + report.pages_used + report.pages_cached == 20
    assert (report.pages_pinned, report.pages_pinnable) == (10, 10)
    assert report.pages_used >= 11


def test_a_report_tells_the_hit_rate_of_all_and_of_the_last_requests() -> None:
    bench = SchedulerBench(20)
    for number in range(260):
        served(bench, DOCUMENT[:8], f"r{number}")
    report = bench.report()
    assert (report.hits.prompt_tokens, report.hits.cached_tokens) == (260 * 8, 259 * 7)
    assert report.hits.rate == round(259 * 7 / (260 * 8), 4)
    assert report.recent_hits == HitRate(
        rate=0.875, prompt_tokens=256 * 8, cached_tokens=256 * 7, requests=256
    )
    stats = bench.scheduler.stats()
    assert (stats.prompt_tokens_looked_up, stats.prompt_tokens_cached) == (260 * 8, 259 * 7)


def test_requests_that_opted_out_do_not_count_as_misses() -> None:
    bench = SchedulerBench(20)
    served(bench, DOCUMENT, namespace=None)
    assert bench.report().hits == HitRate(rate=None, prompt_tokens=0, cached_tokens=0)


def test_a_report_shows_only_tokens_of_the_clients_own_namespace() -> None:
    bench = SchedulerBench(64)
    for namespace in ("mine", "theirs"):
        for name in ("one", "two"):
            served(bench, DOCUMENT, f"{namespace} {name}", namespace)
    shown = {
        prefix.namespace: (unpack(head), unpack(tail))
        for prefix, head, tail in bench.report(own="mine").prefixes
    }
    assert shown == {"mine": (DOCUMENT[:36], DOCUMENT[:36]), "theirs": ([], [])}


def test_a_report_covers_the_clients_scope() -> None:
    bench = SchedulerBench(64)
    for namespace in ("a/", "a/salt", "b/"):
        for name in ("one", "two"):
            served(bench, DOCUMENT, f"{namespace} {name}", namespace)
    report = bench.report(scope="a/")
    assert report.namespaces.keys() == {"a/", "a/salt"}
    assert {prefix.namespace for prefix, _, _ in report.prefixes} == {"a/", "a/salt"}


def test_prefixes_are_ranked_by_the_computing_they_saved() -> None:
    bench = SchedulerBench(64)
    for number in range(4):
        served(bench, [*DOCUMENT[:8], 200 + number, *[9] * 3], f"short{number}")
    for number in range(2):
        served(bench, [*OTHER, 200 + number, *[9] * 3], f"long{number}")
    prefixes = [prefix for prefix, _, _ in bench.report().prefixes]
    assert [(prefix.tokens, prefix.hits) for prefix in prefixes] == [(40, 1), (8, 3)]
    assert prefixes[0].idle < prefixes[1].idle


# Dropping


def test_a_drop_frees_one_namespace_or_all_of_a_scope() -> None:
    bench = SchedulerBench(64)
    for namespace in ("a/", "a/salt", "b/"):
        served(bench, DOCUMENT, namespace, namespace)
    assert bench.control(DropCache(0, 1, "a/", "a/salt")) == CacheDropped(1, 10, 40)
    assert bench.report().namespaces == {"a/": 10, "b/": 10}
    bench.control(DropCache(0, 1, "a/", None))
    assert bench.report().namespaces == {"b/": 10}
    bench.control(DropCache(0, 1, "", None))
    assert bench.report().pages_free == 64


def test_a_drop_takes_nothing_from_running_requests_or_pins() -> None:
    bench = pinned_bench(num_pages=64)
    prompt = [*OTHER[:18], 3]
    bench.submit("a", prompt, max_tokens=8)
    bench.plan()
    bench.control(DropCache(0, 1, "", None))
    bench.run()
    assert bench.tokens("a") == reply_alone(prompt, 8)
    bench.submit("again", [*DOCUMENT, 9], max_tokens=1)
    bench.run()
    assert bench.cached("again") == 40


def test_a_drop_asked_for_after_a_reply_takes_all_of_that_reply() -> None:
    bench = replied_bench(DOCUMENT)
    assert isinstance(bench.control(DropCache(0, 1, "", None)), CacheDropped)
    assert bench.report().pages_free == 64


def test_a_drop_is_carried_out_even_if_its_client_has_died() -> None:
    bench = replied_bench(DOCUMENT)
    bench.handle(DropCache(1, 1, "", None))
    bench.handle(PeerDown("tokenizer", 1))
    bench.run()
    assert bench.report().pages_free == 64


# Explaining


def test_an_explanation_asked_for_after_a_reply_knows_all_of_that_reply() -> None:
    prompt = next(
        found for number in range(60) if EOS in reply_alone(found := [*DOCUMENT, 7, number], max_tokens=7)
    )
    bench = replied_bench(prompt)
    answer = bench.control(ExplainPrompt(0, 1, "", pack(prompt)))
    assert isinstance(answer, PromptExplained)
    assert answer.matched == len(prompt)


def test_waiting_explanations_for_a_dead_client_are_dropped() -> None:
    bench = replied_bench(DOCUMENT)
    for client in (1, 2):
        bench.handle(ExplainPrompt(client, client, "", pack(DOCUMENT)))
    bench.handle(PeerDown("tokenizer", 1))
    bench.run()
    assert [answer.query for answer in bench.answers] == [2]
