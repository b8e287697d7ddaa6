"""Places in the queue: a tenant that floods it leaves places to the others."""

from __future__ import annotations

from collections import Counter

import pytest
from arbora.runtime.messages import Abort
from arbora.runtime.scheduler.queue_places import QueuePlaces
from fake_model import long_reply_prompt
from hypothesis import given
from hypothesis import strategies as st
from scheduler_bench import SchedulerBench

MOVES = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 40), st.booleans()), max_size=80)


def flood(places: QueuePlaces, tenant: str) -> int:
    """Sends requests until one is refused; returns how many were accepted."""
    taken = 0
    while places.admits(tenant):
        places.take(tenant)
        taken += 1
    return taken


@pytest.mark.parametrize("keys", [0, 1, 2, 5])
def test_a_single_tenant_fills_the_whole_queue(keys: int) -> None:
    assert flood(QueuePlaces(100, keys), "a") == 100


@given(most=st.integers(1, 60), keys=st.integers(2, 8), moves=MOVES)
def test_a_key_with_less_than_its_share_is_always_admitted(
    most: int, keys: int, moves: list[tuple[int, int, bool]]
) -> None:
    places = QueuePlaces(most, keys)
    waiting: Counter[str] = Counter()
    for number, count, arrives in moves:
        key = str(number % keys)
        for _ in range(count):
            if arrives and (waiting[key] < most // keys or places.total < most):
                assert places.admits(key)
            if arrives and places.admits(key):
                places.take(key)
                waiting[key] += 1
            elif not arrives and waiting[key]:
                places.give_back(key)
                waiting[key] -= 1
        assert places.total == waiting.total() <= most + max(most, keys)


@given(most=st.integers(1, 200), moves=MOVES)
def test_without_keys_at_most_twice_as_many_wait_in_all(
    most: int, moves: list[tuple[int, int, bool]]
) -> None:
    places = QueuePlaces(most, keys=0)
    for number, count, arrives in moves:
        for _ in range(count):
            if arrives and places.admits(str(number)):
                places.take(str(number))
            elif not arrives and places.taken_by(str(number)):
                places.give_back(str(number))
        assert places.total <= 2 * most


@given(floods=st.lists(st.integers(0, 100), max_size=7, unique=True))
def test_without_keys_each_flood_leaves_places_to_the_next_tenant(floods: list[int]) -> None:
    places = QueuePlaces(128, keys=0)
    for number in floods:
        flood(places, str(number))
    assert places.admits("newcomer")


def test_two_tenants_that_both_flood_end_with_equal_numbers_of_places() -> None:
    places = QueuePlaces(300, keys=0)
    flood(places, "early")
    for _ in range(1000):
        flood(places, "late")
        flood(places, "early")
        for tenant in ("early", "late"):
            places.give_back(tenant)
    assert abs(places.taken_by("early") - places.taken_by("late")) <= 2
    assert places.total >= 390


def test_a_key_that_floods_does_not_take_the_places_of_another() -> None:
    bench = SchedulerBench(slots=4, max_waiting=40, num_pages=500, keys=2)
    for number in range(100):
        bench.submit(f"flood {number}", [1, 2, 3], tenant="flood")
    for number in range(12):
        bench.submit(f"modest {number}", [4, 5, 6], tenant="modest")
    refused = Counter(name.split()[0] for name in bench.refused)
    assert refused == {"flood": 60}
    bench.run()
    assert all(bench.finish(f"modest {number}") for number in range(12))


def test_a_place_is_freed_however_a_request_leaves_the_queue() -> None:
    bench = SchedulerBench(slots=2, max_waiting=4, num_pages=24)
    for round in range(6):
        bench.submit(f"compiled {round}", [1, 2, 3], grammar="even")
        bench.submit(f"wrong {round}", [1, 2, 3], grammar="bad")
        bench.submit(f"left {round}", [1, 2, 3], grammar="even")
        bench.submit(f"dropped {round}", [1, 2, 3])
        bench.submit(f"refused {round}", [1, 2, 3])
        assert bench.refused.keys() & {f"refused {round}"}
        bench.handle(Abort(f"left {round}"))
        bench.handle(Abort(f"dropped {round}"))
        bench.compiler.finish_all()
        bench.run()
    assert bench.scheduler._places.total == 0
    assert bench.scheduler.idle


def test_a_retracted_request_waits_in_a_place_again() -> None:
    bench = SchedulerBench(num_pages=24, page_size=4)
    for name in "abcd":
        bench.submit(name, long_reply_prompt(8, 40, ord(name)), max_tokens=40)
    most = 0
    for _ in range(1000):
        if not (bench.plan() or bench.model.plans):
            break
        bench.step()
        most = max(most, bench.scheduler._places.total)
        assert bench.scheduler._places.total == bench.scheduler.stats().waiting
    assert bench.scheduler.stats().retractions > 0 < most
    assert bench.scheduler._places.total == 0
