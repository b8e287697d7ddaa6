"""The decode server's end: has prompts computed by prefill servers and takes their pages."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from ...messages import Tokens
from .host_pool import Entry, HostPool
from .prefill_messages import (
    AskPages,
    CancelPages,
    FromDecode,
    FromPrefill,
    PagesOver,
    PagesSent,
    TakePages,
    encode,
    set_options,
)

ANSWER_S = 2.0
"""seconds within which a prefill server promises pages; otherwise it is not asked for a while"""
SILENCE_S = 30.0
PROGRESS_S = 10.0
"""seconds within which the next page of a promise has to come; then the rest is computed here"""
BYTES_AHEAD = 16 << 20
"""bytes of one fetch that may be under way at a time"""
log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Peer:
    """A prefill server."""

    address: str
    socket: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]
    is_connected: bool = False
    next: float = 0.0  # it is not asked before this time, on the monotonic clock
    awaited: int = 0  # pages that it has promised and not sent


@dataclass(slots=True, eq=False)
class _Promise:
    """Pages of a fetch that a prefill server was asked for."""

    number: int
    namespace: str
    keys: Sequence[bytes]
    peer: _Peer
    due: float  # when the next message has to come, on the monotonic clock
    arrived: list[Entry] = field(default_factory=list)  # held, and not taken yet
    received: int = 0
    is_answered: bool = False
    is_over: bool = False  # no more pages come


class PrefillPeers:
    """Used by the page store's thread.

    A fetch may end with pages that no tier has: they are asked for at once, and come when the fetch is read
    (`pull`). If a prefill server refuses, is gone or takes too long, the fetch has fewer pages, and the rest
    of the prompt is computed here.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        addresses: Sequence[str],
        model: bytes,
        pool: HostPool,
    ) -> None:
        """Connects to prefill servers, which may start later. model: see `AskPages`"""
        self.received_pages = 0
        self._model = model
        self._pool = pool
        self._ahead = max(1, BYTES_AHEAD // pool.place_bytes)
        self._decoder = msgspec.msgpack.Decoder(FromPrefill)
        self._promises: dict[int, _Promise] = {}
        self._peers = [_connect(context, address) for address in addresses]

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """The sockets whose messages `advance` takes."""
        return [socket for peer in self._peers for socket in (peer.socket, peer.monitor)]

    @property
    def is_busy(self) -> bool:
        return bool(self._promises)

    def ask(self, number: int, namespace: str, prompt: Tokens, first: int, keys: Sequence[bytes]) -> int:
        """Asks a prefill server for pages of `prompt`, the first of which has index `first`. Returns their
        number; 0 if no server is there."""
        now = time.monotonic()
        ready = [peer for peer in self._peers if peer.is_connected and now >= peer.next]
        if not ready or not keys:
            return 0
        peer = min(ready, key=lambda peer: peer.awaited)
        peer.awaited += len(keys)
        self._promises[number] = _Promise(number, namespace, keys, peer, now + ANSWER_S)
        _send(peer, AskPages(number, self._model, namespace, prompt, first, b"".join(keys)))
        return len(keys)

    def pull(self, number: int) -> None:
        """Lets the pages of a fetch come."""
        if number in self._promises:
            _send(self._promises[number].peer, TakePages(number, self._ahead))

    def has_news(self, number: int) -> bool:
        """Whether pages of the fetch have arrived, or no more come."""
        promise = self._promises.get(number)
        return promise is None or promise.is_over or bool(promise.arrived)

    def take(self, number: int) -> tuple[list[Entry], bool]:
        """Returns the arrived pages of a fetch, which stay held, and whether more may come."""
        promise = self._promises.get(number)
        if promise is None:
            return [], False
        arrived, promise.arrived = promise.arrived, []
        if promise.is_over:
            del self._promises[number]
        return arrived, not promise.is_over

    def end(self, number: int) -> None:
        """Ends a fetch in any state."""
        promise = self._promises.get(number)
        if promise is not None:
            self._cancel(promise)
            self._pool.release(promise.arrived)
            del self._promises[number]

    def advance(self) -> None:
        """Takes the messages that have arrived, and ends promises that were not kept in time."""
        for peer in self._peers:
            while peer.socket.poll(0):
                self._receive(peer, peer.socket.recv_multipart(copy=False))
            while peer.monitor.poll(0):
                self._note_event(peer, recv_monitor_message(peer.monitor)["event"])
        now = time.monotonic()
        for promise in [each for each in self._promises.values() if not each.is_over and now > each.due]:
            if not promise.is_answered:
                promise.peer.next = now + SILENCE_S
                log.warning("%s does not answer; it is not asked for %.0f s", promise.peer.address, SILENCE_S)
            else:
                log.info("%s is late with a prompt; the rest is computed here", promise.peer.address)
            self._cancel(promise)

    def _receive(self, peer: _Peer, frames: Sequence[zmq.Frame]) -> None:
        try:
            message = self._decoder.decode(frames[0].buffer)
        except msgspec.MsgspecError as error:
            log.warning("a message of %s can't be read and is dropped: %s", peer.address, error)
            return
        promise = self._promises.get(message.fetch)
        if promise is None or promise.is_over or promise.peer is not peer:
            return  # it was ended meanwhile
        promise.due = time.monotonic() + PROGRESS_S
        promise.is_answered = True
        match message:
            case PagesSent():
                self._store(promise, [frame.buffer for frame in frames[1:]])
            case PagesOver():
                if message.reason:
                    log.warning("%s computes no prompt: %s", peer.address, message.reason)
                self._finish(promise)

    def _store(self, promise: _Promise, contents: Sequence[memoryview]) -> None:
        for content in contents:
            fits = promise.received < len(promise.keys) and content.nbytes == self._pool.place_bytes
            entry = self._pool.reserve(promise.keys[promise.received], promise.namespace) if fits else None
            if entry is None:  # the rest of the prompt is computed
                self._cancel(promise)
                return
            self._pool.content(entry)[:] = content
            self._pool.enter(entry, to_write=False)
            promise.arrived.append(entry)
            promise.received += 1
            promise.peer.awaited -= 1
            self.received_pages += 1
        if promise.received == len(promise.keys):
            self._finish(promise)
        else:
            _send(promise.peer, TakePages(promise.number, len(contents)))

    def _note_event(self, peer: _Peer, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            peer.is_connected, peer.next = True, 0.0
            log.info("%s is connected and computes prompts", peer.address)
        elif event == zmq.EVENT_DISCONNECTED and peer.is_connected:
            peer.is_connected = False
            log.warning("%s is gone; prompts are computed here until it is back", peer.address)
            for promise in self._promises.values():
                if promise.peer is peer and not promise.is_over:
                    self._finish(promise)

    def _cancel(self, promise: _Promise) -> None:
        if not promise.is_over:
            _send(promise.peer, CancelPages(promise.number))
            self._finish(promise)

    def _finish(self, promise: _Promise) -> None:
        promise.is_over = True
        promise.peer.awaited -= len(promise.keys) - promise.received


def _connect(context: zmq.Context[zmq.Socket[bytes]], address: str) -> _Peer:
    socket = context.socket(zmq.DEALER)
    set_options(socket)
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
    socket.connect(address)
    return _Peer(address, socket, monitor)


def _send(peer: _Peer, message: FromDecode) -> None:
    peer.socket.send(encode(message))
