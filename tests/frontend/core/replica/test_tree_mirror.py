"""The mirror has what the trees of all replicas have, whatever happens to them and to their reports."""

from __future__ import annotations

import random
from array import array
from collections import defaultdict

from arbora.frontend.core.replica.router import EXPECTED_S, MAX_SILENCE_S, Router
from arbora.frontend.core.replica.tree_mirror import TreeMirror
from arbora.radix_cache import Lock, PrefixCache
from arbora.runtime.messages import Generate, Load, Message, ReplicaReport
from arbora.runtime.sampling_params import SamplingParams
from arbora.runtime.scheduler.replies import Replies
from arbora.runtime.scheduler.routing_reports import RoutingReports
from fake_scheduler import packed, unpacked

PAGE = 4
SAMPLING = SamplingParams(max_tokens=1)
PAGES = 48
REPLICAS = 3
NAMESPACES = ("", "", "tenant")
Held = dict[tuple[str, tuple[int, ...]], dict[int, int]]
"""by namespace and sequence of whole pages: the id of its last page in each replica"""


class FakeReplica:
    """A tree with random users, and its reports to one client."""

    def __init__(self, source: random.Random) -> None:
        self.random = source
        self.cache = PrefixCache(PAGES, PAGE, check_invariants=source.random() < 0.1)
        self.running: list[tuple[Lock, bytes]] = []
        self.replies = Replies()
        self.reports = RoutingReports(self.cache, Load, self.replies)
        self.reports.watch(0)

    def take_reports(self) -> list[Message]:
        self.reports.send()
        return self.replies.take().get(0, [])

    def act(self, namespace: str, tokens: tuple[int, ...]) -> None:
        """A step in the life of some request, or of the cache."""
        chance = self.random.random()
        if self.running and chance < 0.4:
            lock, prompt = self.running.pop(self.random.randrange(len(self.running)))
            if lock.copy is not None and chance < 0.2:
                self.cache.end_copy(lock)
            if chance < 0.02:
                self.cache.discard(lock)
            elif lock.capacity < len(prompt) // 4:
                self.cache.release(lock, prompt[: 4 * lock.matched])
            else:
                self.cache.commit(lock, prompt)
                self.cache.release(lock, prompt)
        elif chance < 0.45:
            self.cache.drop(namespace)
        elif chance < 0.5:
            lease = self.cache.lease("owner", namespace, packed(tokens), 9.0, 4)
            if lease is not None and chance < 0.49:
                self.cache.end_lease(lease)
        elif len(self.running) < 4:
            prompt = packed(tokens)
            lock = self.cache.acquire(self.cache.match(namespace, prompt, len(tokens) - 1), len(tokens))
            if self.cache.extend(lock, len(tokens)) and self.random.random() < 0.5:
                self.cache.commit(lock, prompt)
            self.running.append((lock, prompt))

    def list_held(self) -> dict[tuple[str, tuple[int, ...]], int]:
        held = {}
        for root in self.cache._tree.roots.values():
            for node in root.subtree():
                tokens = unpacked(node.sequence())
                before = len(tokens) - len(node.tokens) // 4
                for index in range(len(node.tokens) // 4 // PAGE):
                    end = before + (index + 1) * PAGE
                    assert node.namespace is not None
                    held[node.namespace, tuple(tokens[:end])] = node.pages[index]
        return held


def list_mirrored(mirror: TreeMirror) -> Held:
    held: Held = defaultdict(dict)
    for node in mirror.list_nodes():
        before = b""
        above = node.parent
        while above is not None:
            before, above = above.tokens + before, above.parent
        sizes = [len(pages) for pages in node.pages.values()]
        sizes += [expected.pages for expected in node.expected.values()]
        assert max(sizes) * PAGE * 4 == len(node.tokens), "an edge is no longer than its longest part"
        for replica, pages in node.pages.items():
            for index, page in enumerate(pages):
                tokens = before + node.tokens[: 4 * PAGE * (index + 1)]
                held[node.namespace, tuple(unpacked(tokens))][replica] = page
    return held


class Fleet:
    """Replicas, and a router that gets their reports."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.router = Router(PAGE, lambda: self.now)
        self.replicas = [FakeReplica(self.random) for _ in range(REPLICAS)]
        for number in range(REPLICAS):
            self.router.open(number)
        self.seen: list[tuple[int, ...]] = [()]
        self.lost = 0

    def make_tokens(self) -> tuple[int, ...]:
        base = self.random.choice(self.seen[-40:])
        base = base[: self.random.randrange(len(base) + 1)]
        runs = [self.random.randrange(2) for _ in range(self.random.randrange(1, 4))]
        tokens = (*base, *(token for token in runs for _ in range(self.random.randrange(1, 9))))[:60]
        self.seen.append(tokens)
        return tokens

    def step(self) -> None:
        number = self.random.randrange(REPLICAS)
        namespace = self.random.choice(NAMESPACES)
        self.replicas[number].act(namespace, self.make_tokens())
        chance = self.random.random()
        if chance < 0.003:
            self.replicas[number] = FakeReplica(self.random)
            self.router.close(number)
            self.router.open(number)
        elif chance < 0.01:
            self.lost += len(self.replicas[number].take_reports())
        elif chance < 0.1:
            tokens = packed(self.make_tokens())
            request = Generate(f"{self.now}", 0, tokens, SAMPLING, namespace=namespace)
            self.router.send([request], self.router.choose([request], range(REPLICAS)))
            self.now += 0.05
            self.router.note_end(request.request)
        if chance > 0.3:
            self.deliver(number)

    def deliver(self, number: int) -> bool:
        """Returns whether there was a report."""
        reports = self.replicas[number].take_reports()
        for report in reports:
            assert isinstance(report, ReplicaReport)
            if not self.router.take(number, report):
                self.replicas[number].reports.watch(0)
        return bool(reports)

    def list_held(self) -> Held:
        held: Held = defaultdict(dict)
        for number, replica in enumerate(self.replicas):
            for sequence, page in replica.list_held().items():
                held[sequence][number] = page
        return held

    def deliver_all(self) -> None:
        """Delivers all reports, and the whole trees that are requested because reports were lost."""
        self.now += MAX_SILENCE_S
        for number, replica in enumerate(self.replicas):
            while not self.deliver(number):
                replica.act("", self.make_tokens())
            self.deliver(number)


def test_the_mirror_is_the_union_of_the_trees_after_random_operations() -> None:
    for seed in range(5):
        fleet, most_holders = Fleet(seed), 0
        for step in range(2000):
            fleet.step()
            if step % 20 == 0:
                fleet.deliver_all()
                held = fleet.list_held()
                assert list_mirrored(fleet.router._mirror) == held, (seed, step)
                for namespace in NAMESPACES:
                    match(fleet.router._mirror, *fleet.make_tokens(), namespace=namespace)
                most_holders = max([most_holders, *map(len, held.values())])
        assert fleet.lost, "some reports were lost"
        assert most_holders == REPLICAS, "some prefix was in all trees"
        fleet.now += 2 * EXPECTED_S
        fleet.router.find(Generate("last", 0, b"", SAMPLING), range(REPLICAS))
        assert all(node.pages for node in fleet.router._mirror.list_nodes()), "nothing is expected for ever"
        for number in range(REPLICAS):
            fleet.router.close(number)
        assert not fleet.router._mirror._roots


def match(mirror: TreeMirror, *tokens: int, namespace: str = "") -> dict[int, int]:
    found = mirror.match(namespace, packed(tokens))
    counts = {replica: mirror.count(replica, namespace, packed(tokens)) for replica in range(REPLICAS)}
    assert {replica: count for replica, count in counts.items() if count} == found
    return found


def test_a_match_counts_the_whole_pages_of_each_replica() -> None:
    mirror = TreeMirror(2)
    assert mirror.store(0, "", -1, packed([1, 2, 3, 4, 5, 6]), array("i", [7, 8, 9]))
    assert mirror.store(1, "", -1, packed([1, 2, 3, 9]), array("i", [0, 1]))
    assert match(mirror, 1, 2, 3, 4, 5) == {0: 2, 1: 1}
    assert match(mirror, 1, 2, 3, 9, 5, 6) == {0: 1, 1: 2}
    assert match(mirror, 2, 1) == match(mirror, 1) == match(mirror, 1, 2, namespace="other") == {}
    assert mirror.remove(0, array("i", [9, 8]))
    assert match(mirror, 1, 2, 3, 4, 5) == {0: 1, 1: 1}


def test_changes_that_do_not_fit_are_noticed() -> None:
    mirror = TreeMirror(2)
    assert not mirror.store(0, "", 5, packed([1, 2]), array("i", [6]))
    assert mirror.store(0, "", -1, packed([1, 2, 3, 4]), array("i", [5, 6]))
    assert not mirror.remove(0, array("i", [7]))
    assert not mirror.remove(0, array("i", [5]))


def test_what_is_expected_counts_until_its_time() -> None:
    mirror = TreeMirror(2)
    mirror.expect(0, "", packed([1, 2, 3, 4, 5]), 1.0)
    mirror.expect(0, "", packed([1, 2, 9, 9]), 2.0)
    assert match(mirror, 1, 2, 3, 4) == {0: 2}
    mirror.expire(1.0)
    assert match(mirror, 1, 2, 3, 4) == {0: 1}
    assert match(mirror, 1, 2, 9, 9) == {0: 2}
    mirror.expire(2.0)
    assert match(mirror, 1, 2) == {} and not list(mirror.list_nodes())
