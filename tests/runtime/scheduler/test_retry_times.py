"""Refused requests are told when to try again."""

from __future__ import annotations

from copy import deepcopy
from heapq import heappop, heappush
from itertools import count
from random import Random

from arbora.runtime.scheduler.queue_places import MAX_WAIT_S, MIN_WAIT_S, UNMEASURED_S, QueuePlaces
from fake_model import long_reply_prompt
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_bench import SchedulerBench

new = count()  # requests, by the hash of their prompt


def flood(places: QueuePlaces, tenant: str) -> None:
    while places.admits(tenant):
        places.take(tenant)


def measured(places: QueuePlaces, per_second: float) -> QueuePlaces:
    """A copy of the places after a minute in which replies ended at that rate while others waited."""
    places = deepcopy(places)
    for second in range(61):
        for _ in range(int(per_second * (second + 1)) - int(per_second * second)):
            places.count_ended()
        places.tick(float(second), busy=True)
    return places


def test_before_any_reply_has_ended_the_retry_time_is_fixed() -> None:
    places = QueuePlaces(4, keys=0)
    flood(places, "a")
    assert places.retry_after("a", next(new)) == UNMEASURED_S


def test_refused_requests_get_retry_times_one_after_the_other() -> None:
    places = QueuePlaces(40, keys=0)
    flood(places, "a")
    places = measured(places, per_second=2.0)
    told = [places.retry_after("a", next(new)) for _ in range(20)]
    assert told == sorted(told)
    assert told[0] == 1
    assert 7 <= told[-1] <= 9


def test_retry_times_reach_beyond_the_end_of_the_queue() -> None:
    """Otherwise clients would return too early while the queue is short, and be refused again."""
    places = QueuePlaces(4, keys=0)
    flood(places, "a")
    places = measured(places, per_second=2.0)
    assert max(places.retry_after("a", next(new)) for _ in range(50)) in range(19, 22)


@given(st.integers(2, 64), st.integers(2, 6), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_clients_that_obey_keep_the_server_busy_and_are_seldom_refused_again(
    most: int, overload: int, seed: int
) -> None:
    """A server of one slot ends a request each second; `overload` times as many requests arrive for 40 s."""
    chance = Random(seed)
    arriving = sorted((chance.uniform(0.0, 40.0), request) for request in range(40 * overload))
    places = QueuePlaces(most, keys=0)
    refusals, served, now = 0, 0, 0.0
    while arriving or places.total:
        while arriving and arriving[0][0] <= now:
            _, request = heappop(arriving)
            if places.admits("a"):
                places.take("a")
            else:
                refusals += 1
                heappush(arriving, (now + places.retry_after("a", request), request))
        if places.total:
            places.give_back("a")
            places.count_ended()
            served += 1
        places.tick(now := now + 1.0, busy=places.total > 0)
    assert served == 40 * overload
    assert now <= 1.1 * served + UNMEASURED_S
    assert refusals <= 3 * served


def told_beside_impatient_clients(impatient: int, again_after_s: float) -> list[int]:
    """The retry times of obedient clients in a minute, from a server that ends a request each second.
    Impatient clients send the same request again after so many seconds."""
    places = QueuePlaces(4, keys=0)
    flood(places, "a")
    places = measured(places, per_second=1.0)
    returns = {next(new): 61.0 for _ in range(impatient)}
    told = []
    for second in range(61, 121):
        for request, at in returns.items():
            if at <= second:
                places.retry_after("a", request)
                returns[request] = second + again_after_s
        if second % 10 == 0:
            told.append(places.retry_after("a", next(new)))
        places.count_ended()
        places.tick(float(second), busy=True)
    return told


def test_clients_that_return_early_do_not_delay_the_others() -> None:
    alone, beside = told_beside_impatient_clients(0, 2.0), told_beside_impatient_clients(6, 2.0)
    assert max(alone) <= 2
    assert max(beside) <= 9, "their own six times, once each"


def test_a_request_that_comes_early_is_told_the_same_time_again() -> None:
    places = QueuePlaces(4, keys=0)
    flood(places, "a")
    places = measured(places, per_second=0.1)
    first, second = next(new), next(new)
    told = [places.retry_after("a", first), places.retry_after("a", second)]
    places.tick(63.0, busy=True)
    assert [places.retry_after("a", first), places.retry_after("a", second)] == [
        seconds - 3 for seconds in told
    ]
    places.tick(60.0 + told[0], busy=True)
    assert places.retry_after("a", first) > told[0], "it obeyed this time: it gets a place behind the others"
    assert places.retry_after("a", second) == told[1] - told[0]


def test_equal_requests_of_several_clients_get_a_time_each() -> None:
    places = QueuePlaces(4, keys=0)
    flood(places, "a")
    places = measured(places, per_second=0.5)
    request = next(new)
    told = [places.retry_after("a", request) for _ in range(20)]
    assert told[-1] > 30 and len(set(told)) >= 15
    places.tick(60.0 + MIN_WAIT_S, busy=True)
    again = [places.retry_after("a", request) for _ in range(20)]
    assert again == [seconds - MIN_WAIT_S for seconds in told]


def test_no_retry_time_is_longer_than_clients_obey() -> None:
    places = QueuePlaces(1000, keys=0)
    flood(places, "a")
    places = measured(places, per_second=0.1)
    assert max(places.retry_after("a", next(new)) for _ in range(100)) == MAX_WAIT_S


def test_a_tenants_refusals_do_not_delay_another() -> None:
    places = QueuePlaces(100, keys=2)
    flood(places, "noisy")
    flood(places, "quiet")
    places = measured(places, per_second=4.0)
    for _ in range(200):
        places.retry_after("noisy", next(new))
    alone = measured(places, per_second=4.0)
    told = places.retry_after("quiet", next(new))
    assert told == alone.retry_after("quiet", next(new)) < places.retry_after("noisy", next(new))


def test_time_without_waiting_requests_does_not_count() -> None:
    places = QueuePlaces(100, keys=0)
    flood(places, "a")
    places = measured(places, per_second=2.0)
    before = [places.retry_after("a", next(new)) for _ in range(10)]
    places = measured(places, per_second=2.0)
    for _ in range(2):
        places.count_ended()
    places.tick(61.0, busy=False)
    places.tick(100_000.0, busy=True)
    assert [places.retry_after("a", next(new)) for _ in range(10)] == before


def test_the_times_promised_to_many_tenants_are_forgotten() -> None:
    places = QueuePlaces(1, keys=0)
    places.take("a")
    places = measured(places, per_second=100.0)
    for number in range(5000):
        places.retry_after(str(number), number)
        places.tick(61.0 + number, busy=True)
        places.count_ended()
    assert len(places._promised) < 2000


def test_a_refusal_does_not_look_at_all_future_times() -> None:
    places = QueuePlaces(1, keys=0)
    places.take("a")
    places = measured(places, per_second=0.1)
    sweeps = 0
    for number in range(20_000):
        before = places._promised
        places.retry_after(str(number), number)
        sweeps += places._promised is not before
    assert len(places._promised) == 20_000
    assert 1 <= sweeps <= 6


def test_a_refusal_of_the_scheduler_says_when_to_try_again() -> None:
    bench = SchedulerBench(slots=1, max_waiting=4, num_pages=500)
    for number in range(40):
        bench.submit(str(number), long_reply_prompt(4, 4, salt=number), max_tokens=4)
        for _ in range(2):
            bench.run(steps=1)
            bench.now += 1.0
    told = [refused.retry_after for refused in bench.refused.values()]
    assert told[-1] is not None and 3 <= told[-1] <= 24  # a reply takes about four steps of a second
    assert {refused.status for refused in bench.refused.values()} == {429}


def test_the_times_promised_to_requests_are_forgotten() -> None:
    places = QueuePlaces(1, keys=0)
    places.take("a")
    places = measured(places, per_second=2.0)
    for number in range(5000):
        places.retry_after("a", number % 700)
        places.tick(61.0 + number / 2, busy=True)
        places.count_ended()
    (promises,) = places._promised.values()
    assert len(promises._by_due) < 200 and len(promises._by_request) < 200
