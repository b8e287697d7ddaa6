"""Gateways that follow the events know exactly what the tree has, whatever they lose."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from arbora.radix_cache import PrefixCache
from arbora.runtime.scheduler import event_publisher
from event_subscriber import EventSubscriber
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from prefix_world import World
from published_cache import SQL, Publishing

PAGE = 4
PAGES = 24
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
TestGateways.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
