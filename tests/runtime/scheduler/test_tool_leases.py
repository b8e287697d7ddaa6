"""Leases of replies that call tools last as long as the tools are likely to take. Pages have four tokens."""

from __future__ import annotations

import pytest
from arbora.runtime.messages import AwaitTools, LeaseTerms
from scheduler_bench import SchedulerBench

DOCUMENT = list(range(1, 21))  # five pages


def serve(bench: SchedulerBench, name: str, prompt: list[int], *leases: LeaseTerms, **more: str) -> None:
    bench.submit(name, prompt, max_tokens=1, leases=leases, **more)  # type: ignore[arg-type]
    bench.run()


REPLY = LeaseTerms("tool_pause", 2.0)


def test_a_reply_that_ends_in_tool_calls_is_leased_until_their_results_are_likely() -> None:
    bench = SchedulerBench(40, max_pinned=20)
    serve(bench, "call", DOCUMENT, REPLY)
    bench.handle(AwaitTools("call", ["search"]))
    assert [lease.ends_at for lease in bench.report().leases] == [60.0]


def test_a_reply_without_calls_is_leased_for_a_moment() -> None:
    bench = SchedulerBench(40, max_pinned=20)
    serve(bench, "reply", DOCUMENT, REPLY)
    bench.wait(2.0)
    assert bench.scheduler.stats().leases == {}


def pause(bench: SchedulerBench, turn: int, tools: list[str], seconds: float, tenant: str = "") -> None:
    """A reply with tool calls, and the next prompt `seconds` later."""
    prompt = [*DOCUMENT, 30 + turn % 20, 1 + turn // 20]
    serve(bench, f"call{turn}{tenant}", prompt, REPLY, tenant=tenant)
    bench.handle(AwaitTools(f"call{turn}{tenant}", tools))
    bench.wait(seconds)
    serve(bench, f"result{turn}{tenant}", [*prompt, 7], tenant=tenant)


def estimate(bench: SchedulerBench, tools: list[str], tenant: str = "") -> float:
    bench.wait(1000.0)
    serve(bench, f"estimated{bench.now}", [9, 9, 9, 9, 9], REPLY, tenant=tenant)
    bench.handle(AwaitTools(f"estimated{bench.now}", tools))
    [lease] = bench.report().leases
    return lease.ends_at - bench.now


def test_the_lease_lasts_as_long_as_nine_of_ten_calls_of_the_tool_have_taken() -> None:
    bench = SchedulerBench(200, max_pinned=100)
    for turn in range(20):
        pause(bench, turn, ["search"], 10.0 + turn)
    assert estimate(bench, ["search"]) == 28.0


def test_the_slowest_tool_of_a_reply_decides() -> None:
    bench = SchedulerBench(200, max_pinned=100)
    pause(bench, 0, ["quick"], 8.0)
    pause(bench, 1, ["slow"], 80.0)
    assert estimate(bench, ["quick", "slow"]) == 80.0


def test_a_tool_of_another_tenant_teaches_nothing() -> None:
    bench = SchedulerBench(200, max_pinned=100)
    pause(bench, 0, ["search"], 8.0, tenant="a")
    assert estimate(bench, ["search"], tenant="b") == 60.0
    assert estimate(bench, ["search"], tenant="a") == 8.0


@pytest.mark.parametrize(("seconds", "expected"), [(0.1, 5.0), (2000.0, 900.0), (4000.0, 60.0)])
def test_estimates_have_bounds_and_abandoned_conversations_teach_nothing(
    seconds: float, expected: float
) -> None:
    bench = SchedulerBench(200, max_pinned=100)
    pause(bench, 0, ["search"], seconds)
    assert estimate(bench, ["search"]) == expected
