"""Gateways that follow the events know exactly what the tree has, whatever they lose."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from arbora.radix_cache import PrefixCache
from arbora.runtime.event_sockets import Address, EventSockets, read_event_sockets
from arbora.runtime.messages import ADAPTER_MARK, DropCache, Message
from arbora.runtime.scheduler import event_publisher
from arbora.runtime.scheduler.block_events import BlockEvents
from arbora.runtime.scheduler.event_publisher import EventPublisher
from event_subscriber import EventSubscriber, Prefix
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from prefix_world import World, pack, unpack
from scheduler_bench import SchedulerBench

PAGE = 4
PAGES = 24
SQL = "0123abcd"
"""the digest of an adapter"""


class Publishing:
    """A cache whose changes are published, and a publisher that can start again with an empty one."""

    def __init__(self, directory: Path, cache: PrefixCache, replica: int = 0) -> None:
        self.sockets = EventSockets(Address("ipc", f"{directory}/e"), Address("ipc", f"{directory}/r"))
        self.replica = replica
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.start(cache)

    def start(self, cache: PrefixCache) -> None:
        self.cache = cache
        events = BlockEvents("model", cache.num_pages, cache.page_size, {SQL: "sql"}.get)
        self.publisher = EventPublisher(self.context, self.sockets, "kv@me@model", self.replica, cache, events)
        self.now = 0.0

    @property
    def number(self) -> int:
        return self.publisher._number

    def turn(self) -> None:
        self.now += 0.3
        self.publisher.turn(self.now)

    def subscribe(self, replays: bool = True) -> EventSubscriber:
        """A new subscriber that has the whole tree."""
        bases = (self.sockets.address, self.sockets.replay if replays else None)
        address, replay = (None if base is None else base.of_replica(self.replica) for base in bases)
        assert address is not None
        number = self.number
        subscriber = EventSubscriber(address, replay, on_wait=self.turn)
        deadline = time.monotonic() + 60
        while self.number == number or self.publisher.max_wait_s(self.now) is not None:
            self.turn()
            assert time.monotonic() < deadline, "no subscription comes"
        subscriber.follow(self.number)
        return subscriber

    def list_prefixes(self) -> set[Prefix]:
        found = set()
        for root in self.cache._tree.roots.values():
            for node in root.subtree():
                if node.namespace is None:
                    continue
                tenant, _, adapter = node.namespace.partition(ADAPTER_MARK)
                tokens = unpack(node.sequence())
                before = len(tokens) - len(node.tokens) // 4
                for index in range(len(node.tokens) // 4 // self.cache.page_size):
                    end = before + (index + 1) * self.cache.page_size
                    lora = {SQL: "sql"}.get(adapter)
                    found.add(Prefix(tokens[:end], lora, (tenant,) if tenant else ()))
        return found

    def close(self) -> None:
        self.publisher.close()
        self.context.destroy(linger=0)


@contextlib.contextmanager
def publishing(cache: PrefixCache, replica: int = 0) -> Iterator[Publishing]:
    with tempfile.TemporaryDirectory() as directory:
        published = Publishing(Path(directory), cache, replica)
        yield published
        published.close()


def enter(cache: PrefixCache, namespace: str, tokens: list[int]) -> None:
    """Computes a prompt as a request does."""
    packed = pack(tokens)
    lock = cache.acquire(cache.match(namespace, packed, len(tokens) - 1), len(tokens))
    assert cache.extend(lock, len(tokens))
    cache.commit(lock, packed)
    if lock.copy is not None:
        cache.end_copy(lock)
    cache.release(lock, packed)


runs_of_tokens = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9)), min_size=1, max_size=5)
any_index = st.integers(0, 63)
namespaces = st.sampled_from(["", "", "tenant", f"@{SQL}", f"tenant@{SQL}"])


class Gateways(RuleBasedStateMachine):
    """Subscribers that lose messages follow a cache with random users, which starts again now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.subscribers: list[EventSubscriber] = []

    @initialize(kept=st.sampled_from([2, 10_000]))
    def start(self, kept: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(event_publisher, "MAX_KEPT", kept)
        self.open_world()
        self.published = Publishing(Path(self.directory.name), self.world.cache)
        self.seen: list[tuple[int, ...]] = [()]
        self.join()

    def open_world(self) -> None:
        self.world = World(PrefixCache(PAGES, PAGE, check_invariants=True), PAGES)

    @rule(namespace=namespaces, base=any_index, cut=any_index, runs=runs_of_tokens, steps=st.integers(0, 9))
    def admit(self, namespace: str, base: int, cut: int, runs: list[tuple[int, int]], steps: int) -> None:
        if len(self.world.requests) < 4:
            tail = [token for token, length in runs for _ in range(length)]
            tokens = (*self.seen[base % len(self.seen)][:cut], *tail)[: PAGES * PAGE]
            self.seen.append(tokens)
            request = self.world.admit(namespace, tokens, len(tokens))
            self.world.plan(request, steps * PAGE or len(tokens))

    @precondition(lambda self: self.world.requests)
    @rule(which=any_index, runs=st.booleans())
    def end(self, which: int, runs: bool) -> None:
        """Ends a request whose last step may still be in flight."""
        request = self.world.requests[which % len(self.world.requests)]
        if not request.cancelled:
            self.world.cancel(request)
        while runs and self.world.steps:
            self.world.run_step()

    @rule(namespace=namespaces)
    def drop(self, namespace: str) -> None:
        self.world.drop(namespace)

    @rule(lost=st.integers(0, 3))
    def publish(self, lost: int) -> None:
        """Publishes, and has all but `lost` of the first subscribers follow."""
        self.published.turn()
        for index, subscriber in enumerate(self.subscribers):
            if index >= lost:
                self.catch_up(subscriber)
            else:
                subscriber.receive(0.005)

    @rule()
    def join(self) -> None:
        if len(self.subscribers) < 3:
            self.subscribers.append(self.published.subscribe())

    @rule()
    def restart(self) -> None:
        """The scheduler dies and starts again, with an empty cache."""
        self.published.publisher.close()
        self.open_world()
        self.published.start(self.world.cache)

    def catch_up(self, subscriber: EventSubscriber) -> None:
        while (message := subscriber.receive(0.02)) is not None:
            subscriber.take(message)
        if subscriber.last != self.published.number:
            subscriber.apply(subscriber.ask((subscriber.last or 0) + 1))
        assert subscriber.last == self.published.number
        assert subscriber.list_prefixes() == self.published.list_prefixes()

    def teardown(self) -> None:
        if hasattr(self, "published"):
            self.published.turn()
            for subscriber in self.subscribers:
                self.catch_up(subscriber)
                subscriber.close()
            self.published.close()
            self.patch.undo()
        self.directory.cleanup()


TestGateways = Gateways.TestCase
TestGateways.settings = settings(max_examples=5, stateful_step_count=15, print_blob=False, deadline=None)
