"""The order of tasks by size and time of arrival, with a clock that the test sets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue

import pytest
from arbora.grammars.errors import GrammarError, TooLargeError
from arbora.grammars.masks.spellings import Spellings
from arbora.grammars.service.automaton import Automaton
from arbora.grammars.service.jobs import GoOn, Job
from arbora.grammars.service.lanes import LARGE, LONGEST_LEAD_S, Lanes, TakesLongError
from arbora.grammars.service.worker import AutomatonWorkers
from arbora.grammars.tags.special_tokens import SpecialTokens
from arbora.runtime.grammar_spec import GrammarSpec
from grammar_world import EOS, MODEL_VOCAB, vocabulary

THREADS, LARGE_THREADS = 3, 2
PATIENCE_S = 300.0


class World:
    """Lanes whose tasks run until the test lets them end."""

    def __init__(self, threads: int, large: int) -> None:
        self.now = 0.0
        self.began: list[str] = []
        self._changed = threading.Condition()
        self._ended = set[str]()
        self.lanes = Lanes("test", threads, large, lambda: self.now)

    def submit(self, name: str, size: int) -> None:
        self.lanes.submit(size, lambda: self._run(name))

    def submit_slow(self, name: str) -> Future[None]:
        """A task whose first attempt runs until `first NAME` is ended and takes too long."""

        def first() -> None:
            self._run(f"first {name}")
            raise TakesLongError

        return self.lanes.submit(30, lambda: self._run(name), attempt=lambda _: first())

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
    made.lanes.close()


@pytest.fixture
def narrow() -> Iterator[World]:
    made = World(1, 1)
    yield made
    made.end("everything")
    made.lanes.close()


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
    narrow.now = LONGEST_LEAD_S - 1
    narrow.submit("before", 30)
    narrow.now = LONGEST_LEAD_S
    narrow.submit("after", 30)
    narrow.end("everything")
    assert narrow.all_begun("huge", "after")
    assert narrow.began == ["first", "before", "huge", "after"]


def test_a_cancelled_task_never_begins_and_delays_no_other(narrow: World) -> None:
    narrow.submit("first", 30)
    cancelled = narrow.lanes.submit(30, lambda: narrow.began.append("cancelled"))
    assert cancelled.cancel()
    narrow.submit("last", 30)
    narrow.end("everything")
    assert narrow.all_begun("last")
    assert narrow.began == ["first", "last"]


def test_the_waiting_caller_gets_the_error_and_the_thread_takes_the_next_task() -> None:
    def fail() -> None:
        raise GrammarError("wrong")

    lanes = Lanes("test", 1, 1)
    failed, made = lanes.submit(LARGE + 1, fail), lanes.submit(LARGE + 1, lambda: "made")
    assert isinstance(failed.exception(PATIENCE_S), GrammarError)
    assert made.result(PATIENCE_S) == "made"
    lanes.close()


def test_waiting_tasks_are_cancelled_at_the_end(narrow: World) -> None:
    narrow.submit("first", 30)
    waiting = narrow.lanes.submit(30, lambda: narrow.began.append("waiting"))
    waiting.add_done_callback(lambda _: narrow.end("first"))
    narrow.lanes.close()
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
    waiting = narrow.lanes.submit(30, lambda: None)
    waiting.add_done_callback(lambda _: narrow.end("first slow"))
    narrow.lanes.close()
    assert slow.cancelled() and narrow.began == ["first slow"]


def test_the_caller_gets_the_result_or_error_of_a_first_attempt() -> None:
    def fail() -> str:
        raise GrammarError("wrong")

    lanes = Lanes("test", 1, 1)
    failed = lanes.submit(30, lambda: "longer", attempt=lambda _: fail())
    made = lanes.submit(30, lambda: "longer", attempt=lambda _: "made")
    assert isinstance(failed.exception(PATIENCE_S), GrammarError)
    assert made.result(PATIENCE_S) == "made"
    lanes.close()


class HeldWorker:
    """Replaces a process. A job runs until the test lets it end."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[str] = SimpleQueue()
        self.end = threading.Event()

    def build(self, job: Job) -> str:
        self.jobs.put(job.key)
        assert self.end.wait(PATIENCE_S)
        return job.key


def regex_job(key: str, go_on: GoOn | None = None) -> Job:
    return Job(key, GrammarSpec("regex", "a"), 1.0, go_on=go_on)


def test_a_slow_attempt_goes_on_as_a_large_task_while_fewer_than_the_most_run(world: World) -> None:
    answers: dict[str, bool] = {}

    def attempt(name: str, go_on: GoOn) -> None:
        world._run(f"attempt {name}")
        answers[name] = go_on()
        if not answers[name]:
            raise TakesLongError
        world._run(f"{name} goes on")

    names = ["one", "two", "three"]
    tasks = {
        name: world.lanes.submit(30, partial(world._run, name), attempt=partial(attempt, name))
        for name in names
    }
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


class RunningAlready:
    """Instead of the server that forks the processes."""

    def started(self) -> None: ...


def test_a_job_takes_the_last_idle_process() -> None:
    first, last = HeldWorker(), HeldWorker()
    workers = AutomatonWorkers(vocabulary_spellings(), SpecialTokens({}), 2)
    workers._workers = [first, last]  # type: ignore[list-item]
    workers.server = RunningAlready()  # type: ignore[assignment]
    workers._idle = {0, 1}
    with ThreadPoolExecutor() as threads:
        threads.submit(workers.build, regex_job("one"))
        assert last.jobs.get(timeout=PATIENCE_S) == "one"
        threads.submit(workers.build, regex_job("two"))
        assert first.jobs.get(timeout=PATIENCE_S) == "two"
        first.end.set()
        last.end.set()


@pytest.fixture(scope="module")
def real() -> Iterator[AutomatonWorkers]:
    made = AutomatonWorkers(vocabulary_spellings(), SpecialTokens({}), 1)
    made.start()
    yield made
    made.close()


SLOW = GrammarSpec("regex", "(a|b)*a(a|b){12}")


@pytest.mark.parametrize("may_go_on", [True, False])
def test_a_short_job_that_takes_long_asks_once_whether_it_may_go_on(
    real: AutomatonWorkers, may_go_on: bool
) -> None:
    asked: list[None] = []

    def go_on() -> bool:
        asked.append(None)
        return may_go_on

    real.build(Job("before", GrammarSpec("regex", "a"), 60.0))
    process = real._workers[0]._process
    if may_go_on:
        assert isinstance(real.build(Job("short", SLOW, 60.0, go_on=go_on)), Automaton)
        assert real._workers[0]._process is process, "it keeps its cache"
    else:
        with pytest.raises(TakesLongError):
            real.build(Job("short", SLOW, 60.0, go_on=go_on))
    assert len(asked) == 1


def test_no_job_may_take_more_than_its_processor_time(real: AutomatonWorkers) -> None:
    for go_on in (None, lambda: True):
        with pytest.raises(TooLargeError, match=r"more than 0\.05 s of processor time"):
            real.build(Job("limited", SLOW, 0.05, go_on=go_on))


def test_a_quick_job_never_asks_whether_it_may_go_on(real: AutomatonWorkers) -> None:
    job = Job("quick", GrammarSpec("regex", "quick"), 60.0, go_on=lambda: pytest.fail("it asked"))
    assert isinstance(real.build(job), Automaton)


def vocabulary_spellings() -> Spellings:
    words = vocabulary().for_automata()
    return Spellings(words.offsets, words.data, (EOS,), MODEL_VOCAB)
