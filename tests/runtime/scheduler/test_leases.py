"""Leases that requests take when they end. Pages have four tokens."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from arbora.runtime.messages import Abort, DropCache, EndLease, LeaseTerms
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_bench import SchedulerBench

DOCUMENT = list(range(1, 21))  # five pages
FIRST, SECOND = "first/", "second/"


def conversation(ttl_s: float = 60.0, key: str = "c", most: int = 1) -> LeaseTerms:
    return LeaseTerms("conversation", ttl_s, key, most=most)


def breakpoint_at(end: int, ttl_s: float = 300.0) -> LeaseTerms:
    return LeaseTerms("breakpoint", ttl_s, end=end)


def serve(bench: SchedulerBench, name: str, prompt: list[int], *leases: LeaseTerms, **more: str) -> None:
    bench.submit(name, prompt, max_tokens=1, leases=leases, **more)  # type: ignore[arg-type]
    bench.run()


def fill(bench: SchedulerBench, tokens: int = 60) -> None:
    """A request that needs so many tokens of the cache and shares nothing."""
    prompt = [60 - i % 7 for i in range(tokens - 2)]
    serve(bench, f"fill{bench.scheduler.stats().steps}", prompt, namespace="scan")


def cached(bench: SchedulerBench, prompt: list[int], namespace: str = "") -> int:
    return len(bench.cache.whole_pages(namespace, b"".join(t.to_bytes(4, "little") for t in prompt))) * 4


# Effect


def test_a_leased_prefix_outlives_one_used_later() -> None:
    bench = SchedulerBench(16, max_pinned=10)
    serve(bench, "leased", DOCUMENT, conversation())
    serve(bench, "later", [40, *DOCUMENT])
    fill(bench, 40)
    assert cached(bench, DOCUMENT) == 20
    assert cached(bench, [40, *DOCUMENT]) < 20


def test_without_a_lease_it_would_not() -> None:
    bench = SchedulerBench(16, max_pinned=10)
    serve(bench, "first", DOCUMENT)
    serve(bench, "later", [40, *DOCUMENT])
    fill(bench, 40)
    assert cached(bench, DOCUMENT) < 20


def test_a_request_that_needs_every_page_breaks_all_leases() -> None:
    bench = SchedulerBench(16, max_pinned=10)
    serve(bench, "leased", DOCUMENT, conversation())
    fill(bench, 64)
    assert not bench.refused
    assert bench.scheduler.stats().broken_leases == 1
    assert bench.scheduler.stats().pages_leased == 0


def test_the_lease_that_ends_first_is_broken_first() -> None:
    bench = SchedulerBench(16, max_pinned=12)
    serve(bench, "long", DOCUMENT, conversation(600.0, "long"))
    serve(bench, "short", [40, *DOCUMENT], conversation(60.0, "short"))
    fill(bench, 40)
    assert [lease.key for lease in bench.report().leases] == ["long"]


def test_a_pause_for_tools_is_broken_before_a_promised_lease_and_the_longest_first() -> None:
    bench = SchedulerBench(24, max_pinned=20)
    serve(bench, "promised", DOCUMENT, conversation(1.0))
    for name, first, ttl_s in (("soon", 40, 10.0), ("late", 41, 900.0)):
        serve(bench, name, [first, *DOCUMENT], LeaseTerms("tool_pause", ttl_s))
    fill(bench, 40)
    assert [lease.ends_at for lease in bench.report().leases] == [10.0, 1.0]


def test_siblings_with_a_cached_prefix_start_in_one_step() -> None:
    bench = SchedulerBench(64, max_pinned=20)
    serve(bench, "trunk", DOCUMENT, conversation(most=64))
    for branch in range(4):
        bench.submit(f"branch{branch}", [*DOCUMENT, 50 + branch], leases=[conversation(most=64)])
    bench.plan()
    assert len(bench.model.plans[0].rows) == 4


def test_a_lease_ends_with_its_time() -> None:
    bench = SchedulerBench(16, max_pinned=10)
    serve(bench, "leased", DOCUMENT, conversation(60.0))
    bench.wait(59.0)
    assert bench.scheduler.stats().leases == {"conversation": 1}
    assert bench.scheduler.max_wait_s(bench.now) == 1.0
    bench.wait(1.0)
    assert bench.scheduler.stats().leases == {}
    assert bench.scheduler.stats().broken_leases == 0


def test_a_breakpoint_leases_the_full_pages_before_it() -> None:
    bench = SchedulerBench(16, max_pinned=10)
    serve(bench, "leased", DOCUMENT, breakpoint_at(10))
    assert [lease.tokens for lease in bench.report().leases] == [8]


def test_a_breakpoint_never_shortens_a_match() -> None:
    bench = SchedulerBench(16, max_pinned=10)
    serve(bench, "leased", DOCUMENT, breakpoint_at(10))
    serve(bench, "again", [*DOCUMENT, 50])
    assert bench.cached("again") == 20


def test_a_repeated_breakpoint_renews_its_lease() -> None:
    bench = SchedulerBench(16, max_pinned=10)
    serve(bench, "first", DOCUMENT, breakpoint_at(8))
    bench.wait(200.0)
    serve(bench, "second", [*DOCUMENT[:8], 50], breakpoint_at(8))
    assert [lease.ends_at for lease in bench.report().leases] == [500.0]


def test_a_later_breakpoint_makes_the_earlier_one_of_the_conversation_superfluous() -> None:
    bench = SchedulerBench(16, max_pinned=10)
    serve(bench, "first", DOCUMENT, breakpoint_at(8))
    serve(bench, "second", DOCUMENT, breakpoint_at(16))
    assert [lease.tokens for lease in bench.report().leases] == [16]


def test_a_longer_time_at_an_earlier_breakpoint_stays() -> None:
    bench = SchedulerBench(16, max_pinned=10)
    serve(bench, "leased", DOCUMENT, breakpoint_at(8, 3600.0), breakpoint_at(16))
    assert [(lease.tokens, lease.ends_at) for lease in bench.report().leases] == [(8, 3600.0), (16, 300.0)]


def test_a_request_without_the_cache_leases_nothing() -> None:
    bench = SchedulerBench(16, max_pinned=10)
    serve(bench, "private", DOCUMENT, conversation(), namespace=None)  # type: ignore[arg-type]
    assert bench.scheduler.stats().leases == {}


def test_dropping_the_cache_ends_leases() -> None:
    bench = SchedulerBench(16, max_pinned=10)
    serve(bench, "leased", DOCUMENT, conversation())
    bench.control(DropCache(0, 1, "", None))
    bench.wait(0.0)
    stats = bench.scheduler.stats()
    assert (stats.leases, stats.broken_leases, stats.pages_cached) == ({}, 0, 0)


# Keys


def test_a_conversation_holds_one_lease() -> None:
    bench = SchedulerBench(16, max_pinned=10)
    serve(bench, "first", DOCUMENT[:8], conversation())
    serve(bench, "second", DOCUMENT, conversation())
    assert [lease.tokens for lease in bench.report().leases] == [20]


def test_a_rewritten_conversation_gives_up_its_earlier_end() -> None:
    bench = SchedulerBench(32, max_pinned=20)
    serve(bench, "first", DOCUMENT, conversation())
    serve(bench, "second", [*DOCUMENT[:8], 50, 51], conversation())
    assert [lease.tokens for lease in bench.report().leases] == [10]


def test_a_program_keeps_its_branches() -> None:
    bench = SchedulerBench(32, max_pinned=20)
    serve(bench, "trunk", DOCUMENT, conversation(most=2))
    for branch in (50, 51, 52):
        serve(bench, f"branch{branch}", [*DOCUMENT, branch], conversation(most=2))
    assert len(bench.report().leases) == 2
    assert cached(bench, [*DOCUMENT, 52]) == 20


def test_a_queued_request_renews_the_lease_under_its_key() -> None:
    bench = SchedulerBench(16, max_pinned=10)
    serve(bench, "first", DOCUMENT, conversation(60.0))
    bench.wait(50.0)
    bench.submit("second", [*DOCUMENT, 50], leases=[conversation(60.0)])
    assert [lease.ends_at for lease in bench.report().leases] == [110.0]


def test_ending_a_key_ends_its_leases_also_of_a_request_with_a_step_in_flight() -> None:
    bench = SchedulerBench(32, max_pinned=20)
    bench.submit("last", DOCUMENT, max_tokens=2, leases=[conversation()])
    bench.plan()
    bench.plan()
    bench.step()
    bench.handle(Abort("last"))
    bench.handle(EndLease("", "", "c"))
    bench.run()
    assert bench.scheduler.stats().leases == {}
    assert cached(bench, DOCUMENT) == 20


@pytest.mark.parametrize("key", ["", "a"])
def test_ending_a_kind_ends_its_leases_whatever_their_keys(key: str) -> None:
    bench = SchedulerBench(32, max_pinned=20)
    kept = LeaseTerms("keep_alive", 60.0, key)
    for tenant, namespace in (("", ""), ("bob", ""), ("", "other")):
        serve(
            bench, f"{tenant}{namespace}", DOCUMENT, kept, conversation(), tenant=tenant, namespace=namespace
        )
    bench.submit("open", [*DOCUMENT, 50], leases=[kept])
    bench.handle(EndLease("", "", None, "keep_alive"))
    bench.run()
    assert bench.scheduler.stats().leases == {"conversation": 3, "keep_alive": 2}


@pytest.mark.parametrize("has_ended", [False, True])
@pytest.mark.parametrize(
    ("order", "left"),
    [
        (EndLease("", "", "c"), {"session": 1, "breakpoint": 1}),
        (EndLease("", "", None, "conversation"), {"session": 1, "breakpoint": 1}),
        (EndLease("", "", ""), {"conversation": 1, "session": 1}),
    ],
)
def test_the_same_leases_end_before_and_after_they_are_taken(
    order: EndLease, left: dict[str, int], has_ended: bool
) -> None:
    bench = SchedulerBench(32, max_pinned=20)
    terms = [conversation(), LeaseTerms("session", 60.0, "d"), breakpoint_at(8)]
    bench.submit("first", DOCUMENT, leases=terms)
    if has_ended:
        bench.run()
    bench.handle(order)
    bench.run()
    assert bench.scheduler.stats().leases == left


@pytest.mark.parametrize("other", [("other", ""), ("", "bob")])
def test_another_namespace_or_tenant_cannot_end_replace_or_renew_a_lease(other: tuple[str, str]) -> None:
    namespace, tenant = other
    bench = SchedulerBench(32, max_pinned=20)
    serve(bench, "mine", DOCUMENT, conversation(60.0))
    bench.handle(EndLease(namespace, tenant, "c"))
    serve(bench, "theirs", DOCUMENT, conversation(90.0), namespace=namespace, tenant=tenant)
    assert sorted(lease.ends_at for lease in bench.report().leases) == [60.0, 90.0]


def test_another_tenant_sees_no_leases() -> None:
    bench = SchedulerBench(32, max_pinned=20)
    serve(bench, "mine", DOCUMENT, conversation(), tenant="alice", namespace=FIRST)
    listed = bench.scheduler._leases.list_leases
    assert len(listed(FIRST, "alice")) == 1
    assert listed(FIRST, "bob") == listed(SECOND, None) == []


def test_the_next_prompt_finds_a_leased_tail_that_another_request_continued() -> None:
    bench = SchedulerBench(40, max_pinned=20)
    serve(bench, "mine", DOCUMENT[:18], conversation())
    tail = DOCUMENT[:18]
    bench.submit("theirs", [*tail, 50, 51, 52], max_tokens=30, ignore_eos=True)
    bench.plan()
    bench.handle(Abort("theirs"))
    bench.run()
    assert [lease.tokens for lease in bench.report().leases] == [18]
    serve(bench, "again", [*tail, 40])
    assert bench.cached("again") == 18


def test_a_conversation_without_a_key_holds_one_lease_after_each_turn() -> None:
    bench = SchedulerBench(80, max_pinned=60)
    prompt = DOCUMENT[:18]
    for turn in range(6):
        serve(bench, f"turn {turn}", prompt, conversation(key=""))
        assert bench.scheduler.stats().leases == {"conversation": 1}
        assert bench.scheduler.stats().pages_cached == -(-len(prompt) // 4)
        prompt = [*prompt, *bench.tokens(f"turn {turn}"), 40 + turn]


# Quota


def test_over_the_quota_no_lease_is_lost_whose_pages_another_one_protects() -> None:
    bench = SchedulerBench(40, max_pinned=9)
    serve(bench, "prompt", DOCUMENT, breakpoint_at(8, 10.0))
    serve(bench, "whole", DOCUMENT, conversation(90.0, "whole"))
    serve(bench, "other", [50, *DOCUMENT[:15]], conversation(60.0, "other"))
    assert sorted(lease.key for lease in bench.report().leases) == ["", "other", "whole"]
    serve(bench, "last", [51, *DOCUMENT[:3]], conversation(99.0, "last"))
    assert sorted(lease.key for lease in bench.report().leases) == ["", "last", "whole"]


def test_a_longer_prefix_than_the_quota_is_leased_up_to_it() -> None:
    bench = SchedulerBench(16, max_pinned=3)
    serve(bench, "leased", DOCUMENT, conversation())
    assert [lease.tokens for lease in bench.report().leases] == [12]


def test_over_the_quota_the_tenant_with_the_most_pages_loses_the_lease_that_ends_first() -> None:
    bench = SchedulerBench(40, max_pinned=12)
    serve(bench, "a1", DOCUMENT, conversation(90.0, "a1"), tenant="a")
    serve(bench, "a2", [50, *DOCUMENT[:15]], conversation(60.0, "a2"), tenant="a")
    serve(bench, "b1", [51, *DOCUMENT[:15]], conversation(30.0, "b1"), tenant="b")
    assert [lease.key for lease in bench.report().leases] == ["a1", "b1"]
    assert bench.scheduler.stats().broken_leases == 1


def test_pins_count_first() -> None:
    bench = SchedulerBench(40, max_pinned=6)
    serve(bench, "leased", DOCUMENT, conversation())
    serve(bench, "pinned", [50, *DOCUMENT[:15]])
    bench.pin([50, *DOCUMENT[:15]])
    assert bench.report().leases == []
    assert bench.report().pages_pinned == 4


def test_with_pin_memory_0_there_are_no_leases() -> None:
    bench = SchedulerBench(40, max_pinned=0)
    serve(bench, "leased", DOCUMENT, conversation(), breakpoint_at(8))
    assert bench.scheduler.stats().leases == {}


# No harm


@dataclass(frozen=True)
class Sent:
    start: int
    length: int
    max_tokens: int
    leases: tuple[LeaseTerms, ...]


lease_terms = st.builds(
    LeaseTerms,
    kind=st.sampled_from(["conversation", "breakpoint"]),
    ttl_s=st.integers(1, 1000),
    key=st.sampled_from(["", "x", "y", "z"]),
    end=st.none() | st.integers(0, 60),
)
requests = st.builds(
    Sent,
    start=st.integers(0, 9),
    length=st.integers(1, 60),
    max_tokens=st.integers(1, 20),
    leases=st.lists(lease_terms, max_size=3).map(tuple),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(requests, max_size=6), max_size=5), st.integers(10, 24), st.integers(0, 24))
def test_leases_refuse_no_request_and_every_request_ends_as_without_them(
    bursts: list[list[Sent]], num_pages: int, max_pinned: int
) -> None:
    def outcome(*, leased: bool) -> dict[str, object]:
        bench = SchedulerBench(num_pages, slots=3, max_pinned=max_pinned)
        for number, burst in enumerate(bursts):
            for place, sent in enumerate(burst):
                prompt = [1 + (sent.start * 5 + i) % 60 for i in range(sent.length)]
                leases = sent.leases if leased else ()
                bench.submit(f"{number}.{place}", prompt, sent.max_tokens, leases=leases)
            bench.run()
            assert bench.scheduler.idle
        return {name: bench.tokens(name) for name in bench.accepted} | dict.fromkeys(bench.refused)

    assert outcome(leased=True) == outcome(leased=False)


def test_a_request_that_is_open_when_its_key_is_ended_takes_no_lease() -> None:
    bench = SchedulerBench(32, max_pinned=20)
    bench.submit("a", DOCUMENT, max_tokens=50, leases=(conversation(key="s"), breakpoint_at(8)))
    bench.plan()
    bench.plan()
    bench.step()
    bench.handle(EndLease("", "", "s"))
    bench.handle(Abort("a"))
    bench.run()
    assert bench.scheduler.stats().leases == {"breakpoint": 1}
