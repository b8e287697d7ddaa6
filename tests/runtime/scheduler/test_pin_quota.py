"""The quota of pins, of the server or of each isolated key. Pages have four tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from arbora.runtime.api_keys import plain_key
from arbora.runtime.config import ServeConfig
from arbora.runtime.messages import CacheGroup, ModelReady, PinFits, PrefixPinned, QueryRefused, UnpinPrefix
from arbora.runtime.scheduler import lease_registry, process
from scheduler_bench import SchedulerBench

DOCUMENT = list(range(1, 41))  # ten pages
OTHER = [60 - i for i in range(40)]
FIRST, SECOND = "first/", "second/"


def bench_with(prefix: list[int], scope: str = "", max_pinned: int = 10) -> SchedulerBench:
    """A scheduler whose cache of forty pages has the prefix pinned."""
    bench = SchedulerBench(40, max_pinned=max_pinned)
    assert isinstance(computed_and_pinned(bench, prefix, scope), PrefixPinned)
    return bench


def computed_and_pinned(bench: SchedulerBench, prefix: list[int], scope: str) -> object:
    name = f"{scope}{len(prefix)}"
    bench.submit(name, prefix, max_tokens=1, namespace=scope)
    bench.run()
    return bench.pin(prefix, name=name, namespace=scope, scope=scope)


def refused(answer: object) -> QueryRefused:
    assert isinstance(answer, QueryRefused), answer
    return answer


# Shares


def test_a_key_that_uses_its_whole_quota_leaves_others_their_share() -> None:
    bench = bench_with(DOCUMENT, FIRST)
    assert isinstance(computed_and_pinned(bench, DOCUMENT, SECOND), PrefixPinned)
    assert refused(computed_and_pinned(bench, OTHER[:8], FIRST)).code == "pin_quota_exceeded"


def test_a_key_over_its_share_learns_how_much_it_has_pinned() -> None:
    bench = bench_with(DOCUMENT, FIRST)
    computed_and_pinned(bench, DOCUMENT[:12], SECOND)
    assert refused(computed_and_pinned(bench, OTHER, SECOND)).message == (
        "The prefix takes 10 pages (40 tokens) more of the KV cache, but 10 pages (40 tokens) may be pinned "
        "with your API key, of which 3 are. Unpin others (DELETE /cache/pin/ID), or start the server with a "
        "larger --pin-memory."
    )


def test_a_report_has_the_keys_own_share_and_its_use() -> None:
    bench = bench_with(DOCUMENT, FIRST)
    computed_and_pinned(bench, DOCUMENT[:12], SECOND)
    report = bench.report(scope=SECOND)
    assert (report.pages_pinned, report.pages_pinnable) == (3, 10)


def test_pins_that_share_pages_count_them_once_in_their_share_and_give_them_back() -> None:
    bench = bench_with(DOCUMENT, FIRST)
    assert isinstance(computed_and_pinned(bench, DOCUMENT[:20], FIRST), PrefixPinned)
    assert bench.report(scope=FIRST).pages_pinned == 10
    bench.control(UnpinPrefix(0, 1, f"{FIRST}40", FIRST))
    assert bench.report(scope=FIRST).pages_pinned == 5
    bench.wait(60.0)
    assert bench.report(scope=FIRST).pages_pinned == 0


def test_a_key_with_the_most_pins_leaves_others_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease_registry, "MAX_PINS", 1)
    bench = bench_with(DOCUMENT[:8], FIRST)
    assert isinstance(computed_and_pinned(bench, DOCUMENT[:8], SECOND), PrefixPinned)
    answer = refused(computed_and_pinned(bench, OTHER[:8], FIRST))
    assert answer.code == "too_many_pins"
    assert "Unpin others" in answer.message


@pytest.mark.parametrize(
    ("keys", "isolated", "pages"),
    [((), False, 16), (("a", "b"), False, 16), (("a", "b"), True, 8), (("a", "b", "a"), True, 8)],
)
def test_isolated_keys_share_the_quota_evenly(keys: tuple[str, ...], isolated: bool, pages: int) -> None:
    ready = ModelReady([CacheGroup(2, None, 64, 1024)], 16, 256, 8, 512, "cpu")
    config = ServeConfig(
        model=Path("model"),
        served_model_name="model",
        api_keys=tuple(map(plain_key, keys)),
        isolate_keys=isolated,
    )
    assert process._max_pinned(ready, config) == pages


# Before a prefix is computed


def test_a_prefix_that_is_not_cached_yet_may_be_pinned_within_the_quota() -> None:
    bench = SchedulerBench(40, max_pinned=10)
    assert isinstance(bench.check_pin(DOCUMENT), PinFits)
    assert refused(bench.check_pin([*DOCUMENT, *OTHER])).code == "pin_quota_exceeded"


def test_with_a_quota_of_zero_the_refusal_advises_a_larger_one() -> None:
    answer = refused(SchedulerBench(40, max_pinned=0).check_pin(DOCUMENT))
    assert answer.message.endswith("of which 0 are. Start the server with a larger --pin-memory.")


def test_without_a_prefix_cache_a_pin_is_refused_before_it_is_computed() -> None:
    bench = SchedulerBench(40, prefix_cache=False, max_pinned=10)
    assert refused(bench.check_pin(DOCUMENT)).code == "no_prefix_cache"


def test_pages_that_are_pinned_already_count_once() -> None:
    bench = bench_with(DOCUMENT)
    assert isinstance(bench.check_pin(DOCUMENT), PinFits)
    assert isinstance(bench.check_pin(DOCUMENT[:20]), PinFits)
    assert refused(bench.check_pin([*DOCUMENT, *OTHER[:4]])).code == "pin_quota_exceeded"


# What pins take from requests


def test_the_refusal_of_a_request_that_pins_leave_no_pages_for_says_to_end_them() -> None:
    bench = bench_with(DOCUMENT)
    bench.submit("a", OTHER, max_tokens=90)
    refusal = bench.refused["a"]
    assert (refusal.param, refusal.code) == (None, "kv_cache_exceeded")
    assert "40 (160 tokens), 10 of them pinned for others" in refusal.message
    assert "Lower max_tokens, end pins (GET /cache lists them" in refusal.message


def test_the_refusal_of_a_request_that_is_too_large_even_without_pins_omits_them() -> None:
    bench = bench_with(DOCUMENT)
    bench.submit("a", OTHER, max_tokens=200)
    refusal = bench.refused["a"]
    assert refusal.param == "max_tokens"
    assert "pin" not in refusal.message
