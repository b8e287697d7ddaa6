"""The order of tasks by size, time of arrival and their tenant's compile time, with a clock of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial

import pytest
from arbora.grammars.errors import GrammarError
from arbora.grammars.processes.compiler_process import GoOn, TakesLongError
from arbora.grammars.service.fair_thread_pool import (
    HALF_LIFE_S,
    HEAVY_S,
    LARGE,
    MAX_SIZE_DELAY_S,
    MAX_TENANT_DELAY_S,
    FairThreadPool,
    RecentTimes,
)

THREADS, LARGE_THREADS = 3, 2
PATIENCE_S = 300.0


class World:
    """A pool whose tasks run until the test lets them end."""

    def __init__(self, threads: int, large: int) -> None:
        self.now = 0.0
        self.began: list[str] = []
        self._changed = threading.Condition()
        self._ended = set[str]()
        self.pool = FairThreadPool("test", threads, large, RecentTimes(), lambda: self.now)

    def submit(self, name: str, size: int) -> None:
        self.pool.submit(size, lambda _: self._run(name))

    def submit_slow(self, name: str) -> Future[None]:
        """A task whose first attempt runs until `first NAME` is ended and takes too long."""
        is_first = True

        def run(go_on: GoOn) -> None:
            nonlocal is_first
            self._run(f"first {name}" if is_first else name)
            if is_first:
                is_first = False
                raise TakesLongError

        return self.pool.submit(30, run)

    def end(self, *names: str) -> None:
        with self._changed:
            self._ended.update(names)
            self._changed.notify_all()

    def all_begun(self, *names: str) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: set(names) <= set(self.began), timeout=PATIENCE_S)

    def _run(self, name: str) -> None:
        with self._changed:
            self.began.append(name)
            self._changed.notify_all()
            self._changed.wait_for(lambda: name in self._ended or "everything" in self._ended)


@pytest.fixture
def world() -> Iterator[World]:
    made = World(THREADS, LARGE_THREADS)
    yield made
    made.end("everything")
    made.pool.close()


@pytest.fixture
def narrow() -> Iterator[World]:
    made = World(1, 1)
    yield made
    made.end("everything")
    made.pool.close()


def test_a_small_task_begins_while_many_large_ones_run_and_wait(world: World) -> None:
    for number in range(8):
        world.submit(f"large{number}", LARGE + 1)
    world.submit("small", 30)
    assert world.all_begun("large0", "large1", "small")
    assert "large2" not in world.began


def test_a_large_task_begins_when_another_large_one_ends(world: World) -> None:
    for number in range(3):
        world.submit(f"large{number}", LARGE + 1)
    world.end("large0")
    assert world.all_begun("large2")


def test_the_smaller_waiting_task_begins_first(narrow: World) -> None:
    narrow.submit("first", 30)
    narrow.submit("longer", LARGE // 2)
    narrow.submit("shorter", 30)
    narrow.end("everything")
    assert narrow.all_begun("longer", "shorter")
    assert narrow.began == ["first", "shorter", "longer"]


def test_no_job_waits_for_ever_while_smaller_ones_arrive(narrow: World) -> None:
    narrow.submit("first", 30)
    narrow.submit("huge", 1000 * LARGE)
    narrow.now = MAX_SIZE_DELAY_S - 1
    narrow.submit("before", 30)
    narrow.now = MAX_SIZE_DELAY_S
    narrow.submit("after", 30)
    narrow.end("everything")
    assert narrow.all_begun("huge", "after")
    assert narrow.began == ["first", "before", "huge", "after"]


def test_a_cancelled_task_never_begins_and_delays_no_other(narrow: World) -> None:
    narrow.submit("first", 30)
    cancelled = narrow.pool.submit(30, lambda _: narrow.began.append("cancelled"))
    assert cancelled.cancel()
    narrow.submit("last", 30)
    narrow.end("everything")
    assert narrow.all_begun("last")
    assert narrow.began == ["first", "last"]


@pytest.mark.parametrize("size", [30, LARGE + 1])
def test_the_waiting_caller_gets_the_error_and_the_thread_takes_the_next_task(size: int) -> None:
    def fail(go_on: GoOn) -> None:
        raise GrammarError("wrong")

    pool = FairThreadPool("test", 1, 1, RecentTimes())
    failed, made = pool.submit(size, fail), pool.submit(size, lambda _: "made")
    assert isinstance(failed.exception(PATIENCE_S), GrammarError)
    assert made.result(PATIENCE_S) == "made"
    pool.close()


def test_waiting_tasks_are_cancelled_at_the_end(narrow: World) -> None:
    narrow.submit("first", 30)
    waiting = narrow.pool.submit(30, lambda _: narrow.began.append("waiting"))
    waiting.add_done_callback(lambda _: narrow.end("first"))
    narrow.pool.close()
    assert waiting.cancelled()
    assert narrow.began == ["first"]


def test_slow_tasks_leave_a_thread_to_small_ones(world: World) -> None:
    world.end(*(f"first slow{number}" for number in range(8)))
    slow = [world.submit_slow(f"slow{number}") for number in range(8)]
    assert world.all_begun(*(f"first slow{number}" for number in range(8)))
    world.submit("small", 30)
    assert world.all_begun("small")
    assert sum(name.startswith("slow") for name in world.began) <= LARGE_THREADS
    world.end("everything")
    assert [task.result(PATIENCE_S) for task in slow] == [None] * 8
    assert sorted(name for name in world.began if name.startswith("slow")) == [f"slow{n}" for n in range(8)]


@pytest.mark.parametrize("is_running", [False, True])
def test_a_slow_task_can_be_cancelled_until_its_second_attempt(narrow: World, is_running: bool) -> None:
    slow = narrow.submit_slow("slow")
    assert narrow.all_begun("first slow")
    narrow.submit("other", 30)
    if is_running:
        narrow.end("first slow", "other")
        assert narrow.all_begun("slow")
    assert slow.cancel() != is_running
    narrow.end("everything")
    narrow.submit("last", 30)
    assert narrow.all_begun("other", "last")
    assert ("slow" in narrow.began) == is_running


def test_a_slow_task_is_cancelled_at_the_end(narrow: World) -> None:
    slow = narrow.submit_slow("slow")
    assert narrow.all_begun("first slow")
    waiting = narrow.pool.submit(30, lambda _: None)
    waiting.add_done_callback(lambda _: narrow.end("first slow"))
    narrow.pool.close()
    assert slow.cancelled() and narrow.began == ["first slow"]


def test_a_slow_attempt_goes_on_as_a_large_task_while_fewer_than_the_most_run(world: World) -> None:
    answers: dict[str, bool] = {}

    def run(name: str, go_on: GoOn) -> None:
        if name in answers:
            return world._run(name)
        world._run(f"attempt {name}")
        answers[name] = go_on()
        if not answers[name]:
            raise TakesLongError
        return world._run(f"{name} goes on")

    names = ["one", "two", "three"]
    tasks = {name: world.pool.submit(30, partial(run, name)) for name in names}
    assert world.all_begun(*(f"attempt {name}" for name in names))
    world.end("attempt one")
    assert world.all_begun("one goes on")
    world.end("attempt two")
    assert world.all_begun("two goes on")
    world.end("attempt three")
    world.submit("small", 30)
    world.submit("large", LARGE + 1)
    assert world.all_begun("small")
    assert answers == {"one": True, "two": True, "three": False}
    assert "three" not in world.began and "large" not in world.began
    world.end("one goes on")
    assert world.all_begun("three")
    world.end("two goes on")
    assert world.all_begun("large")
    world.end("everything")
    assert [task.result(PATIENCE_S) for task in tasks.values()] == [None] * 3


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_tenants_time_counts_half_after_the_half_life() -> None:
    clock = Clock()
    times = RecentTimes(clock)
    times.add("a", 8.0)
    clock.now = HALF_LIFE_S
    assert times.get("a") == 4.0
    times.add("a", 1.0)
    clock.now = 3 * HALF_LIFE_S
    assert times.get("a") == 1.25
    assert times.get("b") == 0.0


def test_a_tenant_is_heavy_after_more_compiling_than_usual_schemas_take_and_only_for_a_while() -> None:
    clock = Clock()
    times = RecentTimes(clock)
    times.add("usual", HEAVY_S / 2)
    times.add("hostile", 4 * HEAVY_S)
    assert (times.is_heavy("usual"), times.is_heavy("hostile")) == (False, True)
    clock.now = 3 * HALF_LIFE_S
    assert not times.is_heavy("hostile")


def test_no_tenant_is_delayed_for_ever() -> None:
    times = RecentTimes(Clock())
    times.add("hostile", 1e9)
    assert times.delay_s("hostile") == MAX_TENANT_DELAY_S


def test_the_number_of_remembered_tenants_is_bounded() -> None:
    times = RecentTimes(Clock())
    for number in range(5000):
        times.add(f"tenant {number}", 1.0 + number)
    assert len(times._spent) <= 1024
    assert times.get("tenant 4999") > 0.0


def test_a_tenants_queue_does_not_delay_anothers_grammar() -> None:
    clock = Clock()
    times = RecentTimes(clock)
    pool = FairThreadPool("test", 1, 1, times, clock)
    began: list[str] = []
    release = pool.submit(0, lambda _: times.add("hostile", 2.0), "hostile")
    release.result()
    hold = _Hold()
    pool.submit(0, hold, "")
    for number in range(20):
        pool.submit(0, lambda _, number=number: began.append(f"hostile {number}"), "hostile")  # type: ignore[misc]
    clock.now = 1.0
    last = pool.submit(0, lambda _: began.append("other"), "other")
    hold.let_go()
    last.result()
    assert began[0] == "other"
    pool.close()


def test_heavy_tenants_never_take_all_threads() -> None:
    clock = Clock()
    times = RecentTimes(clock)
    times.add("hostile", 100.0)
    pool = FairThreadPool("test", 3, 2, times, clock)
    holds = [_Hold() for _ in range(3)]
    for hold in holds:
        pool.submit(0, hold, "hostile")
    assert pool.submit(0, lambda _: "made", "other").result(60.0) == "made"
    for hold in holds:
        hold.let_go()
    pool.close()


class _Hold:
    """A task that runs until the test ends it."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self, go_on: GoOn) -> None:
        assert self._event.wait(60.0)

    def let_go(self) -> None:
        self._event.set()
