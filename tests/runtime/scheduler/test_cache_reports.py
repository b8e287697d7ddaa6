"""Reports on the nodes of the prefix tree in the scheduler's state machine. Pages have four tokens."""

from __future__ import annotations

import pytest
from arbora.runtime.messages import (
    CacheNode,
    CacheReport,
    LocatePages,
    NodeTokens,
    PagesInTiers,
    PeerDown,
    PrefixPinned,
    QueryCache,
    QueryNode,
)
from arbora.runtime.scheduler import cache_reports
from arbora.runtime.scheduler.scheduler import Now
from fake_model import unpack
from fake_store import keys_of
from scheduler_bench import SchedulerBench

DOCUMENT = list(range(1, 41))  # ten pages
OTHER = [60 - i for i in range(40)]


def served(bench: SchedulerBench, prompt: list[int], name: str = "warm", namespace: str | None = "") -> None:
    bench.submit(name, prompt, max_tokens=1, namespace=namespace)
    bench.run()


def tree(bench: SchedulerBench, scope: str = "", own: str = "") -> CacheReport:
    answer = bench.control(QueryCache(0, 1, scope, own, nodes=True))
    assert isinstance(answer, CacheReport)
    return answer


def nodes_of(report: CacheReport) -> list[CacheNode]:
    return [node for node, _, _ in report.nodes]


def read(bench: SchedulerBench, page: int, scope: str = "", own: str = "mine") -> list[int] | None:
    answer = bench.control(QueryNode(0, 1, scope, own, page))
    assert isinstance(answer, NodeTokens)
    return None if answer.tokens is None else unpack(answer.tokens)


def test_the_tree_shows_the_tokens_of_the_own_namespace_alone() -> None:
    bench = SchedulerBench(40, max_pinned=10)
    served(bench, DOCUMENT, "mine", namespace="mine")
    served(bench, OTHER, "theirs", namespace="theirs")
    report = tree(bench, own="mine")
    assert [(root.node, root.namespace, root.own) for root in report.roots] == [
        (0, "mine", True),
        (1, "theirs", False),
    ]
    heads = {node.parent: unpack(head) for node, _, head in report.nodes if node.parent is not None}
    assert heads == {0: DOCUMENT[:32], 1: []}


def test_the_tree_counts_a_limited_number_of_waiting_requests_at_what_they_would_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache_reports, "MAX_WAITING", 3)
    bench = SchedulerBench(16, max_pinned=10, slots=1)
    served(bench, DOCUMENT)
    bench.submit("runs", DOCUMENT, max_tokens=9)
    assert bench.plan()
    for number in range(5):
        bench.submit(f"waits{number}", DOCUMENT, max_tokens=1)
    nodes = nodes_of(tree(bench))
    assert nodes[0].waiting == 3 and [node.requests for node in nodes[:2]] == [1, 1]
    bench.run()
    assert {node.waiting for node in nodes_of(tree(bench))} == {0}


def test_the_tree_has_only_the_namespaces_of_the_scope() -> None:
    bench = SchedulerBench(40, max_pinned=10)
    served(bench, DOCUMENT, "mine", namespace="mine/")
    served(bench, OTHER, "theirs", namespace="theirs/")
    assert [root.namespace for root in tree(bench, scope="mine/", own="mine/").roots] == ["mine/"]


def test_the_tokens_of_a_node_are_shown_only_in_its_own_namespace() -> None:
    bench = SchedulerBench(40, max_pinned=10)
    served(bench, DOCUMENT, "mine", namespace="mine")
    served(bench, OTHER, "theirs", namespace="theirs")
    mine, theirs = (node.id for node in nodes_of(tree(bench, own="mine")) if node.id is not None)
    assert read(bench, mine) == DOCUMENT
    assert read(bench, theirs) is None
    assert read(bench, mine, scope="other") is None


def test_a_pinned_node_of_the_tree_says_so() -> None:
    bench = SchedulerBench(20, max_pinned=10)
    served(bench, DOCUMENT)
    assert isinstance(bench.pin(DOCUMENT), PrefixPinned)
    nodes = nodes_of(tree(bench))
    assert [(node.pins, node.requests) for node in nodes] == [(1, 0)] * len(nodes)


# The tiers of evicted nodes


def evicting_bench(most_stored: int = 100) -> SchedulerBench:
    """A scheduler whose cache of twelve pages has evicted the document, or most of it."""
    bench = SchedulerBench(12, most_stored=most_stored)
    served(bench, DOCUMENT)
    served(bench, OTHER, "other")
    return bench


def ask(bench: SchedulerBench, client: int = 0) -> None:
    bench.handle(QueryCache(client, 1, "", "", nodes=True))


def locate(bench: SchedulerBench) -> None:
    """The page store answers."""
    assert bench.model.store.answer() == []
    for answer in bench.model.store.located:
        bench.handle(answer)
    bench.model.store.located.clear()
    bench.deliver()


def answered(bench: SchedulerBench) -> CacheReport:
    [report] = bench.answers
    assert isinstance(report, CacheReport)
    return report


def evicted(report: CacheReport) -> list[CacheNode]:
    nodes = [node for node in nodes_of(report) if node.parent is not None and not node.pages]
    assert nodes, "nothing was evicted"
    return nodes


def test_a_report_waits_for_the_tiers_of_its_evicted_nodes() -> None:
    bench = evicting_bench()
    ask(bench)
    assert bench.answers == []
    locate(bench)
    report = answered(bench)
    for node in evicted(report):
        pages = node.tokens // 4
        assert node.stored == PagesInTiers(pages, host=pages, disk=0)
    assert all(node.stored is None for node in nodes_of(report) if node.pages or node.parent is None)


def test_evicted_pages_that_the_store_has_lost_are_in_no_tier() -> None:
    bench = evicting_bench()
    bench.model.store.pages.clear()
    ask(bench)
    locate(bench)
    assert [
        (node.stored.pages > 0, node.stored.host) for node in evicted(answered(bench)) if node.stored
    ] == [(True, 0)]


def test_at_most_32_evenly_spaced_pages_of_a_node_are_looked_up() -> None:
    bench = SchedulerBench(105, most_stored=200)
    served(bench, [*range(100, 500)])
    served(bench, [*range(500, 900)], "other")
    ask(bench)
    [question] = bench.model.store.asked
    assert isinstance(question, LocatePages)
    [node] = [node for node in bench.cache.reports.walk([""]).list_largest(400, 1) if node.keys]
    assert len(node.keys) > 32 * 16
    [keys] = question.groups
    whole, step = keys_of(node.keys), -(-len(node.keys) // (16 * 32))
    assert keys_of(keys) == whole[::step] and len(keys_of(keys)) <= 32


def test_a_report_is_sent_without_tiers_if_the_store_does_not_answer_in_time() -> None:
    bench = evicting_bench()
    ask(bench)
    assert bench.scheduler.max_wait_s(bench.now) == cache_reports.MAX_WAIT_S
    bench.wait(cache_reports.MAX_WAIT_S)
    bench.deliver()
    assert all(node.stored is None for node in evicted(answered(bench)))
    assert bench.scheduler.max_wait_s(bench.now) is None
    bench.answers.clear()
    locate(bench)  # the late answer
    assert bench.answers == []


def test_several_reports_may_wait_at_once_and_those_of_a_dead_client_are_dropped() -> None:
    bench = evicting_bench()
    ask(bench, client=1)
    ask(bench, client=2)
    bench.handle(PeerDown("tokenizer", 1))
    assert bench.model.store.answer() == []
    for answer in bench.model.store.located:
        bench.scheduler.handle(answer, Now())
    assert list(bench.scheduler.take_outgoing().to_clients) == [2]


def test_without_a_page_store_the_report_is_sent_at_once() -> None:
    bench = evicting_bench(most_stored=0)
    ask(bench)
    assert all(node.stored is None for node in evicted(answered(bench)))
    assert bench.model.store.asked == []
