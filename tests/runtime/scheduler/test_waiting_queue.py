"""The order in which waiting requests are tried: priority, fair shares, age and match."""

from __future__ import annotations

from arbora.runtime.scheduler.fairness import Bounds
from arbora.runtime.scheduler.request import Request
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_world import BOUNDS, QueueWorld

TENANTS = ["a", "b", "c"]
COSTS = st.tuples(st.integers(1, 60), st.integers(0, 40))  # tokens to compute, tokens matched


def test_the_longest_match_goes_first_and_then_the_oldest() -> None:
    world = QueueWorld()
    cold, warm, later = world.add(), world.add(matched=8), world.add(matched=8)
    assert [world.start() for _ in range(3)] == [warm, later, cold]


def test_within_the_bound_matches_decide_between_tenants() -> None:
    world = QueueWorld()
    first = world.add("a", tokens=190, matched=90)
    cold, warm = world.add("b", tokens=20), world.add("a", tokens=90, matched=80)
    assert [world.start() for _ in range(3)] == [first, warm, cold]


def test_a_tenant_beyond_the_bound_waits_for_less_served_ones() -> None:
    world = QueueWorld()
    first = world.add("greedy", tokens=200, matched=90)
    warm, cold = world.add("greedy", tokens=90, matched=80), world.add("modest", tokens=20)
    assert [world.start() for _ in range(3)] == [first, cold, warm]


def test_a_better_priority_goes_before_fairness_and_match() -> None:
    world = QueueWorld()
    world.add("greedy", priority=0, tokens=500)
    warm, modest = world.add("greedy", priority=0, tokens=20), world.add("modest", priority=1, matched=9)
    world.start()
    assert [world.start(), world.start()] == [warm, modest]


def test_a_flood_of_requests_counts_as_one_tenant() -> None:
    world = QueueWorld()
    for _ in range(500):
        world.add("flood", tokens=150)
    for _ in range(10):
        world.add("chat", tokens=150)
    served = [world.start().tenant for _ in range(20)]
    assert served.count("chat") == 10


def test_no_tenant_saves_up_while_it_rests() -> None:
    world = QueueWorld()
    for _ in range(100):
        world.add("busy", tokens=150)
    for _ in range(50):
        world.start()
    for _ in range(50):
        world.add("back", tokens=150)
    served = [world.start().tenant for _ in range(20)]
    assert served.count("back") <= 11


def test_tokens_served_to_a_single_tenant_do_not_count_against_it() -> None:
    world = QueueWorld()
    for _ in range(50):
        world.add("early", tokens=1000)
        world.start()
    for _ in range(10):
        world.add("early", tokens=150)
        world.add("late", tokens=150)
    assert {world.start().tenant for _ in range(3)} == {"early", "late"}


@given(arrivals=st.lists(COSTS, min_size=30, max_size=80))
def test_no_request_of_one_tenant_is_overtaken_more_often_than_the_bound(
    arrivals: list[tuple[int, int]],
) -> None:
    world = QueueWorld()
    for tokens, matched in arrivals[:10]:
        world.add(tokens=tokens + matched, matched=matched)
    for tokens, matched in arrivals[10:]:
        world.add(tokens=tokens + matched, matched=matched)
        world.start()
    while len(world.queue):
        world.start()
    for place, request in enumerate(world.started):
        overtaken_by = sum(other.arrival > request.arrival for other in world.started[:place])
        assert overtaken_by <= BOUNDS.overtaken


@given(costs=st.lists(st.tuples(st.sampled_from(TENANTS), COSTS), min_size=20, max_size=120))
def test_tenants_with_a_backlog_are_served_alike_regardless_of_their_matches(
    costs: list[tuple[str, tuple[int, int]]],
) -> None:
    world = QueueWorld()
    for tenant in TENANTS * 2:
        world.add(tenant, tokens=60)
    for tenant, (tokens, matched) in costs:
        world.add(tenant, tokens=tokens + matched, matched=matched)
    dearest = 60
    while all(any(r.tenant == tenant for r in world.queue) for tenant in TENANTS):
        assert world.lead(TENANTS) <= BOUNDS.ahead + dearest
        world.start()


@given(newcomers=st.lists(COSTS, min_size=100, max_size=100), debt=st.integers(0, 500))
@settings(max_examples=50)
def test_a_stream_of_new_tenants_with_better_matches_starves_no_tenant(
    newcomers: list[tuple[int, int]], debt: int
) -> None:
    world = QueueWorld()
    in_debt = world.add("old", tokens=debt + 10, matched=10)
    waits = world.add("old")
    for number in range(3):
        world.add(f"first {number}", matched=9)
    assert world.start() is in_debt
    for number, (tokens, matched) in enumerate(newcomers):
        world.add(f"new {number}", tokens=tokens + matched + 40, matched=matched + 10)
        world.start()
    assert waits in world.started


@given(st.lists(st.integers(0, 3), min_size=60, max_size=60))
def test_every_priority_gets_its_turn_under_a_flood_of_better_ones(priorities: list[int]) -> None:
    world = QueueWorld()
    batch = world.add(priority=4)
    for priority in priorities:
        world.add(priority=priority)
    for _ in range(int(BOUNDS.overtaken) * 5 + 1):
        world.start()
    assert batch in world.started


def test_a_starved_priority_gets_one_start_not_all() -> None:
    world = QueueWorld()
    for _ in range(50):
        world.add(priority=1)
    for _ in range(50):
        world.add(priority=0)
    started = [world.start().priority for _ in range(25)]
    assert started.count(1) == 5


def test_a_tenant_cannot_age_many_requests_at_once_to_put_them_all_first() -> None:
    world = QueueWorld()
    for _ in range(50):
        world.add("flood", tokens=150)
    for _ in range(10):
        world.add("flood", tokens=150, matched=100)
        world.start()
    for _ in range(5):
        world.add("chat", tokens=150)
    served = [world.start().tenant for _ in range(12)]
    assert served.count("chat") >= 4


def test_without_bounds_it_is_first_come_first_served() -> None:
    world = QueueWorld(Bounds(overtaken=0, ahead=float("inf")))
    requests = [
        world.add(tenant, tokens=tokens, matched=tokens // 3) for tenant in TENANTS for tokens in (9, 90)
    ]
    assert [world.start() for _ in requests] == requests


def test_all_are_tried_however_many_wait() -> None:
    world = QueueWorld()
    requests = [world.add(tenant, priority) for _ in range(60) for tenant in TENANTS for priority in (0, 1)]
    tried: list[Request] = []
    while candidates := world.queue.find_candidates(lambda r: 0, lambda rank: True, {r.id for r in tried}):
        tried += candidates
    assert sorted(request.arrival for request in tried) == [request.arrival for request in requests]


def test_counters_of_past_tenants_are_forgotten() -> None:
    world = QueueWorld()
    world.add("tenant")
    for number in range(3000):
        world.add(f"tenant {number}", tokens=150)
        world.start()
    assert len(world.fairness._periods[0].counters) < 1000
