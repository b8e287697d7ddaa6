"""Requests in the background start after all others, also after those of other keys."""

from __future__ import annotations

import pytest
from arbora.runtime.messages import BACKGROUND_PRIORITY
from fake_model import long_reply_prompt
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_world import BOUNDS, QueueWorld
from scheduler_bench import SchedulerBench

TENANTS = ["a", "b", "c"]
USUAL = st.sampled_from([-(2**31), 0, 2**31 - 1])
REQUESTS = st.lists(st.tuples(st.sampled_from(TENANTS), USUAL | st.just(BACKGROUND_PRIORITY)), max_size=60)


def submit_batch(bench: SchedulerBench, count: int, tokens: int) -> None:
    """Requests in the background with replies of so many tokens, named b 0, b 1, …"""
    for number in range(count):
        prompt = [1 + (7 * number + 5 * i) % 60 for i in range(20)]
        bench.submit(f"b {number}", prompt, tokens, tenant="a", priority=BACKGROUND_PRIORITY, ignore_eos=True)


def finished(bench: SchedulerBench, steps: int) -> list[str]:
    """The requests that end within so many steps, in order."""
    order: list[str] = []
    for _ in range(steps):
        bench.run(steps=1)
        order += [name for name in list(bench.outputs) if bench.finish(name) and name not in order]
    return order


@pytest.mark.parametrize("own_priorities", [False, True])
@given(requests=REQUESTS)
def test_no_request_in_the_background_starts_before_another(
    own_priorities: bool, requests: list[tuple[str, int]]
) -> None:
    world = QueueWorld(own_priorities=own_priorities)
    for tenant, priority in requests:
        world.add(tenant, priority)
    started = [world.start().priority == BACKGROUND_PRIORITY for _ in requests]
    assert started == sorted(started)


@pytest.mark.parametrize("own_priorities", [False, True])
@given(
    batches=st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(0, 40)), min_size=2, max_size=20),
    others=st.lists(st.tuples(st.sampled_from(TENANTS), USUAL), max_size=30),
)
def test_the_order_in_the_background_does_not_depend_on_other_requests(
    own_priorities: bool, batches: list[tuple[str, int]], others: list[tuple[str, int]]
) -> None:
    def order(others: list[tuple[str, int]]) -> list[int]:
        world = QueueWorld(own_priorities=own_priorities)
        background = [world.add(tenant, BACKGROUND_PRIORITY, 50, matched) for tenant, matched in batches]
        for tenant, priority in others:
            world.add(tenant, priority)
        while len(world.queue):
            world.start()
        return [background.index(request) for request in world.started if request in background]

    assert order(others) == order([])


@pytest.mark.parametrize("own_priorities", [False, True])
def test_a_flood_of_others_does_not_make_it_overdue(own_priorities: bool) -> None:
    world = QueueWorld(own_priorities=own_priorities)
    batch = world.add("a", BACKGROUND_PRIORITY)
    for _ in range(4 * int(BOUNDS.overtaken)):
        world.add("a")
        assert world.start() is not batch
    assert world.start() is batch


def test_it_takes_nothing_from_the_share_of_its_key() -> None:
    world = QueueWorld(own_priorities=True)
    for _ in range(10):
        world.add("a", BACKGROUND_PRIORITY, tokens=150)
        world.start()
    for tenant in ("a", "b") * 10:
        world.add(tenant, tokens=150)
    served = [world.start().tenant for _ in range(10)]
    assert served.count("a") == 5


def test_among_batches_keys_have_even_shares() -> None:
    world = QueueWorld(own_priorities=True)
    for _ in range(40):
        world.add("a", BACKGROUND_PRIORITY, tokens=150)
    for _ in range(10):
        world.add("b", BACKGROUND_PRIORITY, tokens=150)
    assert [world.start().tenant for _ in range(20)].count("b") == 10


def test_its_prefill_waits_for_another_keys_prompt() -> None:
    bench = SchedulerBench(num_pages=4000, page_size=4, keys=2)
    prompt = long_reply_prompt(900, 1)
    bench.submit("batch", prompt, max_tokens=1, priority=BACKGROUND_PRIORITY, tenant="a")
    bench.run(steps=2)
    bench.submit("interactive", long_reply_prompt(20, 1, salt=7), max_tokens=1, tenant="b", priority=9)
    bench.run(steps=3)
    assert bench.finish("interactive") == "length"
    assert bench.finish("batch") is None


def test_when_pages_run_out_it_is_retracted_first() -> None:
    bench = SchedulerBench(num_pages=24, page_size=4, keys=2)
    for number in range(2):
        prompt = long_reply_prompt(8, 40, number)
        bench.submit(f"b {number}", prompt, max_tokens=40, tenant="a", priority=BACKGROUND_PRIORITY)
    bench.run(steps=2)
    for number in range(2):
        prompt = long_reply_prompt(8, 40, 5 + number)
        bench.submit(f"i {number}", prompt, max_tokens=40, tenant="b")
    order = finished(bench, steps=500)
    assert bench.scheduler.stats().retractions > 0
    assert order[:2] == ["i 0", "i 1"]
    assert len(order) == 4


def test_it_makes_way_for_a_request_that_needs_its_pages() -> None:
    bench = SchedulerBench(num_pages=24, page_size=4)
    for number in range(2):
        prompt = long_reply_prompt(30, 14, number)
        bench.submit(f"b {number}", prompt, max_tokens=14, priority=BACKGROUND_PRIORITY)
    bench.run(steps=3)
    assert bench.scheduler.stats().running == 2
    bench.submit("interactive", long_reply_prompt(30, 4, 7), max_tokens=4)
    order = finished(bench, steps=300)
    assert order[0] == "interactive"
    assert len(order) == 3
    assert bench.scheduler.stats().retractions >= 1


@settings(max_examples=40, deadline=None)
@given(
    slots=st.integers(1, 4),
    batches=st.integers(0, 8),
    others=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 4)), min_size=1, max_size=6),
)
def test_no_request_waits_for_the_end_of_one_in_the_background(
    slots: int, batches: int, others: list[tuple[int, int]]
) -> None:
    bench = SchedulerBench(num_pages=400, slots=slots, keys=2)
    submit_batch(bench, batches, tokens=200)
    bench.run(steps=3)
    for number, (length, reply) in enumerate(others):
        bench.submit(f"i {number}", long_reply_prompt(length, reply, 9 + number), reply, tenant="b")
    order = finished(bench, steps=100)
    assert {*order[: len(others)]} == {f"i {number}" for number in range(len(others))}
    bench.run(steps=10_000)
    assert all(bench.finish(f"b {number}") == "length" for number in range(batches))


def test_several_requests_get_slots_of_the_background_at_once() -> None:
    bench = SchedulerBench(num_pages=400, slots=4)
    submit_batch(bench, 6, tokens=200)
    bench.run(steps=5)
    for number in range(3):
        bench.submit(f"i {number}", [50 + number, 1, 2], max_tokens=1)
    assert len(finished(bench, steps=4)) == 3
    assert bench.scheduler.stats().retractions == 3


def test_only_as_many_are_retracted_as_prompts_start_in_the_next_step() -> None:
    bench = SchedulerBench(num_pages=4000, slots=4)
    submit_batch(bench, 4, tokens=200)
    bench.run(steps=5)
    for number in range(3):
        bench.submit(f"i {number}", long_reply_prompt(900, 1, 9 + number), max_tokens=1)
    bench.run(steps=4)
    assert bench.scheduler.stats().retractions == 1
