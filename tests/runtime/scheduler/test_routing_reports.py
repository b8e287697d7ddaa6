"""Routers hear what the tree has got and lost, and how much work is open. Pages have four tokens."""

from __future__ import annotations

from array import array

from arbora.runtime.messages import DropCache, PeerDown, ReplicaReport, TreeChange, WatchReplica
from arbora.runtime.scheduler.backlog import FIRST_REPLY
from fake_model import pack, unpack
from scheduler_bench import SchedulerBench, settled

PROMPT = list(range(1, 41))  # ten pages
BASE_S = 0.010
TOKEN_S = 0.001


def bench_with_watcher(slots: int = 8) -> SchedulerBench:
    """A scheduler that knows the times of its machine, and one client that watches it."""
    bench = SchedulerBench(budget=settled(1000 * BASE_S, 1000 * TOKEN_S), slots=slots)
    bench.handle(WatchReplica(0))
    bench.run()
    return bench


def list_stored(reports: list[ReplicaReport]) -> list[TreeChange]:
    return [change for report in reports for change in report.changes if change.tokens]


def list_removed(reports: list[ReplicaReport]) -> list[int]:
    packed = b"".join(change.pages for report in reports for change in report.changes if not change.tokens)
    return array("i", packed).tolist()


def test_without_a_watcher_nothing_is_collected() -> None:
    bench = SchedulerBench()
    bench.submit("a", PROMPT)
    bench.run()
    assert not bench.reports
    assert bench.cache._tree.changes is None


def test_a_prompt_is_reported_with_its_first_chunk_and_a_reply_when_it_ends() -> None:
    bench = bench_with_watcher()
    bench.submit("a", PROMPT, max_tokens=9, ignore_eos=True)
    bench.run()
    stored = list_stored(bench.reports[0])
    assert unpack(b"".join(change.tokens for change in stored)) == [*PROMPT, *bench.tokens("a")[:8]]
    assert stored[0].after == -1
    before = array("i", stored[0].pages)
    for change in stored[1:]:
        assert change.after == before[-1]
        before = array("i", change.pages)
    sequences = [report.sequence for report in bench.reports[0]]
    assert sequences == [*range(1, len(sequences) + 1)]


def test_evicted_and_dropped_pages_are_reported_the_last_one_first() -> None:
    bench = bench_with_watcher()
    bench.submit("a", PROMPT, max_tokens=1)
    bench.run()
    pages = array("i", b"".join(change.pages for change in list_stored(bench.reports[0]))).tolist()
    assert len(pages) == 10
    bench.submit("b", [60 - token % 50 for token in range(240)], max_tokens=1)
    bench.run()
    evicted = list_removed(bench.reports[0])
    assert evicted and evicted == pages[::-1][: len(evicted)]
    bench.control(DropCache(0, 1, "", None))
    bench.run()
    assert set(list_removed(bench.reports[0])) >= set(pages)


def test_a_late_watcher_gets_the_whole_tree_and_then_the_same_reports() -> None:
    bench = bench_with_watcher()
    bench.submit("a", PROMPT, max_tokens=1)
    bench.run()
    bench.handle(WatchReplica(1))
    bench.run()
    (whole,) = bench.reports[1]
    assert whole.is_whole and not bench.reports[0][-1].is_whole
    assert whole.sequence == bench.reports[0][-1].sequence
    assert unpack(b"".join(change.tokens for change in whole.changes)) == PROMPT
    bench.submit("b", [*PROMPT, *PROMPT], max_tokens=1)
    bench.run()
    assert bench.reports[1][1:] == bench.reports[0][-len(bench.reports[1]) + 1 :]


def test_a_dead_watcher_gets_nothing_and_the_last_one_ends_the_collection() -> None:
    bench = bench_with_watcher()
    bench.handle(PeerDown("tokenizer", 0))
    bench.submit("a", PROMPT, client=1)
    bench.run()
    assert len(bench.reports[0]) == 1
    assert bench.cache._tree.changes is None


def test_the_backlog_is_the_time_of_uncached_tokens_and_of_open_replies() -> None:
    bench = bench_with_watcher(slots=1)
    for name, uncached in (("a", 40), ("b", 400), ("c", 30)):
        bench.submit(name, PROMPT, max_tokens=20, client=1, uncached=uncached)
    bench.run(1)
    load = bench.reports[0][-1].load
    assert load.token_s is not None and abs(load.token_s - TOKEN_S) < 0.3 * TOKEN_S
    to_decode = 3 * 20 * BASE_S
    in_step = 40  # of the prompt that the step in flight computes
    assert round((load.backlog_s - to_decode) / load.token_s) == in_step + 400 + 30
    bench.run()
    assert bench.reports[0][-1].load.backlog_s < 0.005


def test_an_open_reply_counts_as_much_as_replies_are_long() -> None:
    bench = bench_with_watcher()
    bench.submit("a", PROMPT, max_tokens=150, ignore_eos=True)
    bench.run(2)
    backlog = bench.reports[0][-1].load.backlog_s
    mean = FIRST_REPLY // 2  # of the assumed reply and this one, which has one token
    assert round(backlog * 8 / BASE_S) == mean - 1


def test_a_load_that_hardly_changes_is_not_reported() -> None:
    bench = bench_with_watcher()
    bench.submit("a", PROMPT, max_tokens=100, ignore_eos=True)
    bench.run()
    assert len(bench.reports[0]) < 60 < len(bench.outputs["a"])
    assert pack(PROMPT) == list_stored(bench.reports[0])[0].tokens
