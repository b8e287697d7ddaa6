"""With several API keys a priority orders a key's own requests, and takes nothing from other keys."""

from __future__ import annotations

from arbora.runtime.scheduler.request import Request
from fake_model import long_reply_prompt
from hypothesis import given
from hypothesis import strategies as st
from queue_world import BOUNDS, QueueWorld
from scheduler_bench import SchedulerBench

TENANTS = ["a", "b", "c"]
PRIORITIES = st.sampled_from([-(2**31), -1, 0, 1, 2**31 - 1])
COSTS = st.tuples(st.integers(1, 60), st.integers(0, 40))  # tokens to compute, tokens matched


def test_the_best_priority_gives_a_key_no_more_than_its_share() -> None:
    world = QueueWorld(own_priorities=True)
    for _ in range(100):
        world.add("greedy", priority=-1000, tokens=150)
    for _ in range(10):
        world.add("modest", priority=5, tokens=150)
    served = [world.start().tenant for _ in range(20)]
    assert served.count("modest") == 10


def test_among_its_own_requests_a_keys_better_priority_goes_first() -> None:
    world = QueueWorld(own_priorities=True)
    batch = [world.add("a", priority=1) for _ in range(2)]
    other = world.add("b", priority=7)
    interactive = [world.add("a", priority=0) for _ in range(2)]
    started = [world.start() for _ in range(5)]
    assert [request for request in started if request.tenant == "a"] == interactive + batch
    assert started.index(other) <= 2


def test_a_keys_own_worse_priority_gets_its_turn_under_a_flood_of_better_ones() -> None:
    world = QueueWorld(own_priorities=True)
    batch = world.add("a", priority=4)
    for _ in range(50):
        world.add("a", priority=0)
        world.add("b", priority=-3)
    for _ in range(4 * int(BOUNDS.overtaken)):
        world.start()
    assert batch in world.started


def test_a_start_of_another_key_does_not_age_a_line_that_waits_for_its_own_keys_better_one() -> None:
    world = QueueWorld(own_priorities=True)
    better = [world.add("a", priority=0) for _ in range(2)]
    worse = [world.add("a", priority=5) for _ in range(2)]
    for _ in range(3):
        world.add("b", matched=9)
        assert world.start().tenant == "b"
    assert [request.overtaken for request in better] == [3, 3]
    assert [request.overtaken for request in worse] == [0, 0]


def test_a_starved_priority_gets_no_start_of_another_key() -> None:
    world = QueueWorld(own_priorities=True)
    for _ in range(60):
        world.add("a", priority=0, tokens=150)
        world.add("a", priority=1, tokens=150)
        world.add("b", tokens=150)
    served = [world.start().tenant for _ in range(60)]
    assert abs(served.count("a") - served.count("b")) <= 2


def test_all_are_tried_however_many_wait() -> None:
    world = QueueWorld(own_priorities=True)
    requests = [world.add(tenant, priority) for _ in range(60) for tenant in TENANTS for priority in (0, 1)]
    tried: list[Request] = []
    while candidates := world.queue.find_candidates(lambda r: 0, lambda rank: True, {r.id for r in tried}):
        tried += candidates
    assert sorted(request.arrival for request in tried) == [request.arrival for request in requests]


@given(costs=st.lists(st.tuples(st.sampled_from(TENANTS), PRIORITIES, COSTS), min_size=20, max_size=120))
def test_keys_with_a_backlog_are_served_alike_regardless_of_their_priorities(
    costs: list[tuple[str, int, tuple[int, int]]],
) -> None:
    world = QueueWorld(own_priorities=True)
    for tenant in TENANTS * 2:
        world.add(tenant, tokens=60)
    for tenant, priority, (tokens, matched) in costs:
        world.add(tenant, priority, tokens + matched, matched)
    dearest = 60
    while {request.tenant for request in world.queue} == {*TENANTS}:
        assert world.lead(TENANTS) <= BOUNDS.ahead + dearest
        world.start()


def test_a_keys_interactive_prompt_is_computed_before_the_rest_of_its_batch_prompt() -> None:
    bench = SchedulerBench(num_pages=4000, page_size=4, keys=2)
    bench.submit("batch", long_reply_prompt(900, 1), max_tokens=1, priority=1, tenant="a")
    bench.run(steps=2)
    bench.submit("interactive", long_reply_prompt(20, 1, salt=7), max_tokens=1, tenant="a")
    bench.run(steps=3)
    assert bench.finish("interactive") == "length"
    assert bench.finish("batch") is None


def test_a_prompt_in_prefill_is_not_preempted_for_another_keys_priority() -> None:
    bench = SchedulerBench(num_pages=4000, page_size=4, keys=2)
    bench.submit("begun", long_reply_prompt(900, 1), max_tokens=1, priority=1, tenant="a")
    bench.run(steps=2)
    bench.submit("urgent", long_reply_prompt(900, 1, salt=7), max_tokens=1, priority=-1000, tenant="b")
    bench.run(steps=1)
    while bench.finish("begun") is None:
        assert bench.finish("urgent") is None
        bench.run(steps=1)


def test_when_pages_run_out_the_best_priority_does_not_save_a_key_that_came_last() -> None:
    bench = SchedulerBench(num_pages=24, page_size=4, keys=2)
    for number in range(2):
        bench.submit(f"old {number}", long_reply_prompt(8, 40, number), max_tokens=40, tenant="a", priority=9)
    bench.run(steps=2)
    for number in range(2):
        prompt = long_reply_prompt(8, 40, 5 + number)
        bench.submit(f"new {number}", prompt, max_tokens=40, tenant="b", priority=-9)
    order: list[str] = []
    for _ in range(500):
        bench.run(steps=1)
        order += [name for name in list(bench.outputs) if bench.finish(name) and name not in order]
    assert bench.scheduler.stats().retractions > 0
    assert order[:2] == ["old 0", "old 1"]
    assert len(order) == 4
