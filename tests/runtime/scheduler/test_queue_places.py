"""Places in the queue: a tenant's flood leaves places to the others, and refusals have retry times."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from random import Random

import pytest
from arbora.runtime.scheduler.queue_places import LONGEST_WAIT_S, UNMEASURED_S, QueuePlaces, RetryTimes
from fake_model import long_reply_prompt
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_bench import SchedulerBench

MOVES = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 40), st.booleans()), max_size=80)


def flood(places: QueuePlaces, tenant: str) -> int:
    """As many requests as are taken; returns how many."""
    taken = 0
    while places.admits(tenant):
        places.take(tenant)
        taken += 1
    return taken


def retry_times_at(places: QueuePlaces, per_second: float) -> RetryTimes:
    """After a minute in which replies ended at that rate while others waited."""
    retry_times = RetryTimes(places)
    for second in range(61):
        for _ in range(int(per_second * (second + 1)) - int(per_second * second)):
            retry_times.ended()
        retry_times.tick(float(second), busy=True)
    return retry_times


@pytest.mark.parametrize("keys", [0, 1, 2, 5])
def test_a_single_tenant_fills_the_whole_queue(keys: int) -> None:
    assert flood(QueuePlaces(100, keys), "a") == 100


@given(most=st.integers(1, 60), keys=st.integers(2, 8), moves=MOVES)
def test_a_key_with_less_than_its_share_is_always_taken(
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


def test_places_come_back_however_a_request_leaves_the_queue() -> None:
    bench = SchedulerBench(slots=2, max_waiting=4, num_pages=24)
    for round in range(6):
        bench.submit(f"compiled {round}", [1, 2, 3], grammar="even")
        bench.submit(f"wrong {round}", [1, 2, 3], grammar="bad")
        bench.submit(f"left {round}", [1, 2, 3], grammar="even")
        bench.submit(f"dropped {round}", [1, 2, 3])
        bench.submit(f"refused {round}", [1, 2, 3])
        assert bench.refused.keys() & {f"refused {round}"}
        bench.scheduler.drop(f"left {round}")
        bench.scheduler.drop(f"dropped {round}")
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


def test_before_any_reply_has_ended_the_retry_time_is_fixed() -> None:
    places = QueuePlaces(4, keys=0)
    flood(places, "a")
    assert RetryTimes(places).retry_after("a") == UNMEASURED_S


def test_refused_requests_get_retry_times_one_after_the_other() -> None:
    places = QueuePlaces(40, keys=0)
    flood(places, "a")
    retry_times = retry_times_at(places, per_second=2.0)
    told = [retry_times.retry_after("a") for _ in range(20)]
    assert told == sorted(told)
    assert told[0] == 1
    assert 7 <= told[-1] <= 9


def test_retry_times_reach_beyond_the_end_of_the_queue() -> None:
    """A short queue must not send the same clients back again and again."""
    places = QueuePlaces(4, keys=0)
    flood(places, "a")
    retry_times = retry_times_at(places, per_second=2.0)
    assert max(retry_times.retry_after("a") for _ in range(50)) in range(19, 22)


@given(st.integers(2, 64), st.integers(2, 6), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_clients_that_obey_keep_the_server_busy_and_are_seldom_refused_again(
    most: int, overload: int, seed: int
) -> None:
    """A server of one slot ends a request each second; `overload` times as many requests arrive for 40 s."""
    chance = Random(seed)
    arriving = sorted(chance.uniform(0.0, 40.0) for _ in range(40 * overload))
    places = QueuePlaces(most, keys=0)
    retry_times = RetryTimes(places)
    refusals, served, now = 0, 0, 0.0
    while arriving or places.total:
        while arriving and arriving[0] <= now:
            heappop(arriving)
            if places.admits("a"):
                places.take("a")
            else:
                refusals += 1
                heappush(arriving, now + retry_times.retry_after("a"))
        if places.total:
            places.give_back("a")
            retry_times.ended()
            served += 1
        retry_times.tick(now := now + 1.0, busy=places.total > 0)
    assert served == 40 * overload
    assert now <= 1.1 * served + UNMEASURED_S
    assert refusals <= 3 * served


def test_no_retry_time_is_longer_than_clients_obey() -> None:
    places = QueuePlaces(1000, keys=0)
    flood(places, "a")
    retry_times = retry_times_at(places, per_second=0.1)
    assert max(retry_times.retry_after("a") for _ in range(100)) == LONGEST_WAIT_S


def test_a_tenants_refusals_do_not_delay_another() -> None:
    places = QueuePlaces(100, keys=2)
    flood(places, "noisy")
    flood(places, "quiet")
    retry_times = retry_times_at(places, per_second=4.0)
    for _ in range(200):
        retry_times.retry_after("noisy")
    alone = retry_times_at(places, per_second=4.0)
    assert retry_times.retry_after("quiet") == alone.retry_after("quiet") < retry_times.retry_after("noisy")


def test_time_without_waiting_requests_does_not_count() -> None:
    places = QueuePlaces(100, keys=0)
    flood(places, "a")
    retry_times = retry_times_at(places, per_second=2.0)
    before = [retry_times.retry_after("a") for _ in range(10)]
    retry_times = retry_times_at(places, per_second=2.0)
    for _ in range(2):
        retry_times.ended()
    retry_times.tick(61.0, busy=False)
    retry_times.tick(100_000.0, busy=True)
    assert [retry_times.retry_after("a") for _ in range(10)] == before


def test_the_times_promised_to_many_tenants_are_forgotten() -> None:
    places = QueuePlaces(1, keys=0)
    places.take("a")
    retry_times = retry_times_at(places, per_second=100.0)
    for number in range(5000):
        retry_times.retry_after(str(number))
        retry_times.tick(61.0 + number, busy=True)
        retry_times.ended()
    assert len(retry_times._promised) < 2000


def test_times_that_lie_ahead_are_not_all_looked_at_for_each_refusal() -> None:
    places = QueuePlaces(1, keys=0)
    places.take("a")
    retry_times = retry_times_at(places, per_second=0.1)
    sweeps = 0
    for number in range(20_000):
        before = retry_times._promised
        retry_times.retry_after(str(number))
        sweeps += retry_times._promised is not before
    assert len(retry_times._promised) == 20_000
    assert 1 <= sweeps <= 6


def test_a_refusal_of_the_scheduler_says_when_to_try_again() -> None:
    bench = SchedulerBench(slots=1, max_waiting=4, num_pages=500)
    now = 0.0
    for number in range(40):
        bench.submit(str(number), long_reply_prompt(4, 4, salt=number), max_tokens=4)
        for _ in range(2):
            bench.run(steps=1)
            bench.scheduler.tick(now)
            now += 1.0
    told = [refused.retry_after for refused in bench.refused.values()]
    assert told[-1] is not None and 3 <= told[-1] <= 24  # a reply takes about four steps of a second
    assert {refused.status for refused in bench.refused.values()} == {429}
