"""Publishes the changes of the prefix cache on ZeroMQ sockets as vLLM does, and never waits for a subscriber.

A message is [topic, number, batch]. A subscriber that has just connected, also again, gets the whole tree as
its first event, and so does everyone else. One that has missed numbers may ask for them on the other socket.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from pathlib import Path

import msgspec
import zmq
from zmq.auth import load_certificate
from zmq.auth.thread import ThreadAuthenticator

from ...radix_cache import PrefixCache
from ..event_sockets import EventSockets
from .block_events import AllBlocksCleared, BlockEvents, Event, EventBatch

MAX_UNREAD = 1_000
"""messages that wait for a slow subscriber; it does not get those above"""
MAX_KEPT = 10_000
"""messages that can be asked for again"""
MAX_KEPT_BYTES = 64 << 20
MIN_WHOLE_S = 1.0
"""seconds between two messages with the whole tree, however many subscribers connect"""
MAX_REQUESTS = 16
"""requests for missed messages that are answered in a turn"""
NUMBER_BYTES = 8
NO_NUMBER = (-1).to_bytes(NUMBER_BYTES, "big", signed=True)
SUBSCRIBE = b"\1"
WITHOUT_WAITING = int(zmq.NOBLOCK)  # plain numbers: enumerations take longer than the sockets
MORE_FOLLOWS = int(zmq.NOBLOCK | zmq.SNDMORE)
ZAP_DOMAIN = b"kv-events"

log = logging.getLogger("arbora.scheduler")

Context = zmq.Context[zmq.Socket[bytes]]


class EventPublisher:
    """The events of one scheduler. Numbers begin with the microseconds since 1970 at its start, so an earlier
    scheduler's are all lower."""

    def __init__(
        self,
        context: Context,
        sockets: EventSockets,
        topic: str,
        replica: int,
        cache: PrefixCache,
        events: BlockEvents,
    ) -> None:
        self._cache = cache
        self._changes = cache.watch_changes()
        self._events = events
        self._replica = replica
        self._topic = topic.encode()
        self._number = time.time_ns() // 1000
        self._encoder = msgspec.msgpack.Encoder()
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._is_whole_due = False
        self._next_whole = 0.0
        self._authenticator = None if sockets.clients is None else _authenticate(context, sockets.clients)
        # An XPUB socket is a PUB socket that tells of subscriptions, VERBOSE: of each.
        options: dict[int, int] = {zmq.XPUB_VERBOSE: 1, zmq.SNDHWM: MAX_UNREAD}
        self._publisher = _bind(context, zmq.XPUB, sockets.address.of_replica(replica), options, sockets)
        self.sockets = [self._publisher]
        """Sockets that wake the scheduler when they have something to read."""
        self._replay: zmq.Socket[bytes] | None = None
        if sockets.replay is not None:
            address = sockets.replay.of_replica(replica)
            self._replay = _bind(context, zmq.ROUTER, address, {zmq.SNDHWM: MAX_KEPT + 1}, sockets)
            self.sockets.append(self._replay)
        self._publish([AllBlocksCleared()])

    def max_wait_s(self, now: float) -> float | None:
        """Seconds until the whole tree is due; None: nobody waits for it. now: of `time.monotonic`"""
        return max(0.0, self._next_whole - now) if self._is_whole_due else None

    def turn(self, now: float, has_input: bool) -> None:
        """Publishes what has changed, and serves subscribers. Call it between the scheduler's turns.

        has_input: whether one of `sockets` has something to read
        """
        if changes := self._changes.take():
            self._publish(self._events.describe(changes))
        if has_input:
            self._take_subscriptions()
        if self._is_whole_due and now >= self._next_whole:
            self._is_whole_due, self._next_whole = False, now + MIN_WHOLE_S
            self._publish(self._describe_all())
        if has_input and self._replay is not None:
            self._answer(self._replay)

    def close(self) -> None:
        self._cache.stop_changes(self._changes)
        for socket in self.sockets:
            socket.close(linger=0)
        if self._authenticator is not None:
            self._authenticator.stop()

    def _publish(self, events: list[Event]) -> None:
        self._number += 1
        batch = self._encode(events)
        self._publisher.send(self._topic, MORE_FOLLOWS)
        self._publisher.send(_pack(self._number), MORE_FOLLOWS)
        self._publisher.send(batch, WITHOUT_WAITING)
        self._kept.append((self._number, batch))
        self._kept_bytes += len(batch)
        while len(self._kept) > MAX_KEPT or (self._kept_bytes > MAX_KEPT_BYTES and len(self._kept) > 1):
            self._kept_bytes -= len(self._kept.popleft()[1])

    def _describe_all(self) -> list[Event]:
        return self._events.describe_all(self._cache.list_pages())

    def _encode(self, events: list[Event]) -> bytes:
        return self._encoder.encode(EventBatch(time.time(), events, self._replica))

    def _take_subscriptions(self) -> None:
        while _has_input(self._publisher):
            message = self._publisher.recv()
            if message[:1] == SUBSCRIBE and self._topic.startswith(message[1:]):
                self._is_whole_due = True

    def _answer(self, replay: zmq.Socket[bytes]) -> None:
        """Sends the messages from the number on that a subscriber names, then one that ends the answer."""
        for _ in range(MAX_REQUESTS):
            if not _has_input(replay):
                return
            *envelope, number = replay.recv_multipart()
            if len(number) != NUMBER_BYTES:
                log.debug("--kv-events: a request for missed events has %d bytes", len(number))
                continue
            for each, batch in self._find_missed(int.from_bytes(number, "big")):
                replay.send_multipart([*envelope, self._topic, _pack(each), batch], WITHOUT_WAITING)
            replay.send_multipart([*envelope, b"", NO_NUMBER, b""], WITHOUT_WAITING)

    def _find_missed(self, first: int) -> list[tuple[int, bytes]]:
        """The messages from `first` on. If they are no longer kept or are of another scheduler, one message
        with the whole tree, which has the number of the last one."""
        if self._kept[0][0] <= first <= self._number + 1:
            return list(self._kept)[first - self._kept[0][0] :]
        return [(self._number, self._encode(self._describe_all()))]


def _has_input(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


def _pack(number: int) -> bytes:
    return number.to_bytes(NUMBER_BYTES, "big")


def _authenticate(context: Context, clients: Path) -> ThreadAuthenticator:
    """Starts a thread that refuses subscribers whose key is not in the directory."""
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve(domain=ZAP_DOMAIN.decode(), location=clients)
    return authenticator


def _bind(
    context: Context, kind: int, address: str, options: dict[int, int], sockets: EventSockets
) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    for option, value in {zmq.LINGER: 0, zmq.IPV6: 1, **options}.items():
        socket.setsockopt(option, value)
    if sockets.secret is not None:
        socket.curve_publickey, secret = load_certificate(sockets.secret)
        assert secret is not None, "the option's reader has found a secret key"
        socket.curve_secretkey = secret
        socket.curve_server = True
        socket.zap_domain = ZAP_DOMAIN
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # refuses all if the authenticator does not answer
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        sys.exit(f"--kv-events {address}: the address can't be used ({error.strerror}). Choose another one.")
    if address.startswith("ipc://"):
        Path(address.removeprefix("ipc://")).chmod(0o600)
    return socket
