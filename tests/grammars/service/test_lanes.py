"""The order of tasks by size and time of arrival, with a clock that the test sets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest
from arbora.grammars.errors import GrammarError
from arbora.grammars.masks.token_trie import Spellings
from arbora.grammars.service.jobs import Job
from arbora.grammars.service.lanes import LARGE, LONGEST_LEAD_S, Lanes
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


class HeldWorker:
    """Replaces a process. A job runs until the test lets it end."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[str] = SimpleQueue()
        self.end = threading.Event()

    def start(self) -> None:
        pass

    def build(self, job: Job) -> str:
        self.jobs.put(job.key)
        assert self.end.wait(PATIENCE_S)
        return job.key


def regex_job(key: str, regex: str) -> Job:
    return Job(key, GrammarSpec("regex", regex), 1.0)


def test_large_grammars_leave_a_process_to_small_ones() -> None:
    first, last = HeldWorker(), HeldWorker()
    workers = AutomatonWorkers(vocabulary_spellings(), SpecialTokens({}), 2)
    workers._workers = [first, last]  # type: ignore[list-item]
    workers.start()
    with ThreadPoolExecutor() as threads:
        large = [threads.submit(workers.build, regex_job(f"large{n}", "a" * (LARGE + 1))) for n in range(3)]
        assert first.jobs.get(timeout=PATIENCE_S).startswith("large")
        small = threads.submit(workers.build, regex_job("small", "a"))
        assert last.jobs.get(timeout=PATIENCE_S) == "small"
        last.end.set()
        assert small.result(PATIENCE_S) == "small"
        first.end.set()
        assert [job.result(PATIENCE_S) for job in large] == ["large0", "large1", "large2"]
    assert last.jobs.empty()


def test_small_grammars_take_the_first_process_when_the_last_is_busy() -> None:
    first, last = HeldWorker(), HeldWorker()
    workers = AutomatonWorkers(vocabulary_spellings(), SpecialTokens({}), 2)
    workers._workers = [first, last]  # type: ignore[list-item]
    workers.start()
    with ThreadPoolExecutor() as threads:
        threads.submit(workers.build, regex_job("one", "a"))
        assert last.jobs.get(timeout=PATIENCE_S) == "one"
        threads.submit(workers.build, regex_job("two", "a"))
        assert first.jobs.get(timeout=PATIENCE_S) == "two"
        first.end.set()
        last.end.set()


def vocabulary_spellings() -> Spellings:
    words = vocabulary().for_automata()
    return Spellings(words.offsets, words.data, (EOS,), MODEL_VOCAB)
