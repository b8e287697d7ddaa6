"""A prefix cache whose changes a publisher sends to gateways in the same thread."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import zmq
from arbora.radix_cache import PrefixCache
from arbora.runtime.event_sockets import EventSockets
from arbora.runtime.messages import ADAPTER_MARK
from arbora.runtime.scheduler.block_events import BlockEvents
from arbora.runtime.scheduler.event_publisher import EventPublisher
from arbora.runtime.zmq_address import Address
from event_subscriber import EventSubscriber, Prefix
from prefix_world import pack, unpack

SQL = "0123abcd"
"""the digest of an adapter"""


class Publishing:
    """A cache whose changes are published, and a publisher that can start again with an empty one."""

    def __init__(
        self, directory: Path, cache: PrefixCache, replica: int = 0, sockets: EventSockets | None = None
    ) -> None:
        default = EventSockets(Address("ipc", f"{directory}/e"), Address("ipc", f"{directory}/r"))
        self.sockets = sockets or default
        self.replica = replica
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.adapters = {SQL: "sql"}
        """names by digest"""
        self.start(cache)

    def start(self, cache: PrefixCache) -> None:
        self.cache = cache
        events = BlockEvents("model", cache.num_pages, cache.page_size, self.adapters.get)
        self.publisher = EventPublisher(
            self.context, self.sockets, "kv@me@model", self.replica, cache, events
        )
        self.now = 0.0

    @property
    def number(self) -> int:
        return self.publisher._number

    def turn(self) -> None:
        self.now += 0.3
        self.publisher.turn(self.now, has_input=True)

    def subscribe(self, replays: bool = True, keys: Sequence[bytes] = ()) -> EventSubscriber:
        """A new subscriber that has the whole tree."""
        bases = (self.sockets.address, self.sockets.replay if replays else None)
        address, replay = (None if base is None else base.of_replica(self.replica) for base in bases)
        assert address is not None
        number = self.number
        subscriber = EventSubscriber(address, replay, keys, on_wait=self.turn)
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
                    lora = "sql" if adapter else None
                    found.add(Prefix(tokens[:end], lora, (tenant,) if tenant else ()))
        return found

    def close(self) -> None:
        self.publisher.close()
        self.context.destroy(linger=0)


@contextlib.contextmanager
def publishing(
    cache: PrefixCache, replica: int = 0, sockets: EventSockets | None = None
) -> Iterator[Publishing]:
    with tempfile.TemporaryDirectory() as directory:
        published = Publishing(Path(directory), cache, replica, sockets)
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
