"""The prefill server's end: computes prompts for decode servers and sends their pages."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from ...errors import ConfigError
from ...messages import PREFILL_CLIENT, Abort, Generate, Outputs, PrefillAnswer, Refused
from ...processes.sockets import Outbox
from ...sampling_params import SamplingParams
from .host_pool import HostPool, split_keys
from .prefill_messages import (
    AskPages,
    CancelPages,
    FromDecode,
    FromPrefill,
    PagesOver,
    PagesPromised,
    PagesSent,
    TakePages,
    encode,
    set_options,
)

MAX_PAGES = 8
"""pages of a message"""
ABANDONED_S = 60.0
"""seconds after which a decode server that takes no pages is forgotten"""
log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Order:
    """Pages that a decode server asked for."""

    decoder: bytes  # identity of its connection
    fetch: int
    request: str
    keys: Sequence[bytes]
    sent: int = 0
    taken: int = 0  # number of pages that the decode server has room for, counted from the first
    is_computed: bool = False  # the request has ended: what is not stored now will never be
    used_at: float = 0.0  # when the decode server last asked or took pages, on the monotonic clock


class PrefillServer:
    """Answers decode servers from the page store's thread.

    A prompt is computed by a request of its own, which saves its pages to host memory as they are computed.
    Pages that wait to be sent are not held there: one that was evicted meanwhile ends the order, and the
    decode server computes the rest.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, model: bytes, pool: HostPool
    ) -> None:
        """Binds `address`. Raises ConfigError if that fails. model: see `AskPages`"""
        self.socket = context.socket(zmq.ROUTER)
        set_options(self.socket)
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            self.socket.close()
            raise ConfigError(
                f"--prefill-at {address}: it can't be bound ({error.strerror}): choose another address."
            ) from error
        if address.startswith("ipc://"):
            Path(address.removeprefix("ipc://")).chmod(0o600)
        self.sent_pages = 0
        self._model = model
        self._pool = pool
        self._decoder = msgspec.msgpack.Decoder(FromDecode)
        self._orders: dict[tuple[bytes, int], _Order] = {}
        self._last = 0
        log.info("prompts of other servers are computed for those that connect to %s", address)

    @property
    def is_busy(self) -> bool:
        return bool(self._orders)

    def advance(self, scheduler: Outbox) -> None:
        """Takes the messages that have arrived, and sends the pages that are stored."""
        while self.socket.poll(0):
            decoder, *frames = self.socket.recv_multipart()
            try:
                message = self._decoder.decode(frames[0])
            except (msgspec.MsgspecError, IndexError) as error:
                log.warning("a message to --prefill-at can't be read and is dropped: %s", error)
                continue
            self._take(decoder, message, scheduler)
        now = time.monotonic()
        for at, order in list(self._orders.items()):
            self._send_stored(order)
            is_abandoned = order.is_computed and now > order.used_at + ABANDONED_S
            if order.sent == len(order.keys) or is_abandoned:
                del self._orders[at]

    def note(self, answer: PrefillAnswer) -> None:
        """Takes the scheduler's answer to requests that compute prompts."""
        match answer:
            case Refused():
                self._end(answer.request, answer.message)
            case Outputs():
                for output in answer.items:
                    if output.finish is not None:
                        self._end(output.request, output.error.message if output.error is not None else "")

    def _take(self, decoder: bytes, message: FromDecode, scheduler: Outbox) -> None:
        at = (decoder, message.fetch)
        match message:
            case AskPages():
                self._begin(decoder, message, scheduler)
            case TakePages() if at in self._orders:
                self._orders[at].taken += message.pages
                self._orders[at].used_at = time.monotonic()
            case CancelPages() if at in self._orders:
                order = self._orders.pop(at)
                if not order.is_computed:
                    scheduler.send(Abort(order.request))

    def _begin(self, decoder: bytes, message: AskPages, scheduler: Outbox) -> None:
        if message.model != self._model:
            reason = "its model, or an option on which the contents of pages depend, is another"
            self._answer(decoder, PagesOver(message.fetch, reason))
            return
        self._last += 1
        order = _Order(decoder, message.fetch, f"prefill-{self._last}", split_keys(message.keys))
        order.used_at = time.monotonic()
        order.is_computed = all(key in self._pool for key in order.keys)
        self._orders[decoder, message.fetch] = order
        self._answer(decoder, PagesPromised(message.fetch))
        if not order.is_computed:
            scheduler.send(
                Generate(
                    order.request,
                    PREFILL_CLIENT,
                    message.prompt,
                    SamplingParams(max_tokens=1, temperature=0.0),
                    namespace=message.namespace,
                    is_streamed=False,
                    saved_from=message.first,
                )
            )

    def _send_stored(self, order: _Order) -> None:
        """Sends the pages that are stored, as far as the decode server takes them."""
        while order.sent < min(order.taken, len(order.keys)):
            last = min(order.taken, order.sent + MAX_PAGES)
            held = []
            for key in order.keys[order.sent : last]:
                entry = self._pool.hold(key)
                if entry is None:
                    break
                held.append(entry)
            if held:
                contents = [self._pool.content(entry) for entry in held]
                self.socket.send_multipart([order.decoder, encode(PagesSent(order.fetch)), *contents])
                self._pool.release(held)
                order.sent += len(held)
                self.sent_pages += len(held)
            elif order.is_computed:
                self._answer(order.decoder, PagesOver(order.fetch))
                order.sent = len(order.keys)
            else:
                return

    def _end(self, request: str, reason: str) -> None:
        for at, order in list(self._orders.items()):
            if order.request == request:
                order.is_computed = True
                if reason:
                    self._answer(order.decoder, PagesOver(order.fetch, reason))
                    del self._orders[at]

    def _answer(self, decoder: bytes, message: FromPrefill) -> None:
        self.socket.send_multipart([decoder, encode(message)])
