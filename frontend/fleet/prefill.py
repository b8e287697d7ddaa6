"""Prefill apart from decode in simulated time: which prefill replica computes a prompt, and when its pages
have come."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

from ...radix_cache import split_keys
from ...runtime.messages import (
    PREFILL_CLIENT,
    Abort,
    EndFetch,
    FetchPages,
    FindPages,
    Generate,
    Message,
    Outputs,
    PagesFetched,
    PagesFound,
    Refused,
    SavePages,
    SchedulerInbox,
)
from ...runtime.sampling_params import SamplingParams


class PrefillServers(NamedTuple):
    """The servers of `--prefill-from`."""

    replicas: int
    page_s: float
    """seconds that a page takes on the link of a replica"""


class Delivery(NamedTuple):
    """A message that reaches a replica at a time."""

    at: float
    replica: int
    message: SchedulerInbox


@dataclass(slots=True, eq=False)
class _Order:
    """Pages that a decode replica asked a prefill replica for."""

    decode: int
    prefill: int
    fetch: int
    request: str  # of the prefill replica
    keys: Sequence[bytes]
    asked_at: float
    computed: int = 0
    ready_at: float = 0.0  # when the computed pages are in host memory
    sent: int = 0
    arrives_at: float = 0.0  # when the sent pages have come
    is_pulled: bool = False  # whether the decode replica takes pages
    is_over: bool = False  # no more pages will be computed


class PageMoves:
    """Takes the place of the page stores of decode and prefill replicas.

    As in the server, a prompt goes to the prefill replica that owes the asking one the fewest pages, and its
    pages are sent as they are computed. The link of a replica carries one message at a time.
    """

    def __init__(self, decode: int, servers: PrefillServers) -> None:
        """decode: the number of decode replicas, whose numbers are before those of the prefill replicas"""
        self.waits_s = array("f")
        """for each prompt, the seconds until its pages had come"""
        self._prefill = range(decode, decode + servers.replicas)
        self._page_s = servers.page_s
        self._orders: dict[tuple[int, int], _Order] = {}  # by decode replica and fetch
        self._by_request: dict[str, _Order] = {}
        self._owed = Counter[tuple[int, int]]()  # pages, by decode and prefill replica
        self._arriving: list[tuple[float, tuple[int, int], int]] = []  # heap of when pages are owed no more
        self._free_at = [0.0] * (decode + servers.replicas)  # when each replica's link is free
        self._asked = 0

    def take(
        self, replica: int, messages: Iterable[Message], now: float, saved_at: float
    ) -> Iterator[Delivery]:
        """Takes the messages of a replica to its page store. Yields the messages that follow from them.

        saved_at: when pages that the messages save are in host memory
        """
        for message in messages:
            match message:
                case FindPages():
                    yield from self._find(replica, message, now)
                case FetchPages(fetch):
                    order = self._orders[replica, fetch]
                    order.is_pulled = True
                    yield from self._send(order, now)
                case EndFetch(fetch):
                    yield from self._end(replica, fetch, now)
                case SavePages():
                    yield from self._save(replica, message, saved_at)
                case Outputs(items):
                    for output in items:
                        if output.finish is not None:
                            yield from self._note_over(output.request, saved_at)
                case Refused(request):
                    yield from self._note_over(request, now)

    def _find(self, decode: int, message: FindPages, now: float) -> Iterator[Delivery]:
        keys = split_keys(message.keys) if message.prompt else []
        if keys:
            while self._arriving and self._arriving[0][0] <= now:
                _, pair, pages = heappop(self._arriving)
                self._owed[pair] -= pages
            prefill = min(self._prefill, key=lambda number: self._owed[decode, number])
            self._owed[decode, prefill] += len(keys)
            self._asked += 1
            order = _Order(decode, prefill, message.fetch, f"prefill-{self._asked}", keys, now)
            self._orders[decode, message.fetch] = self._by_request[order.request] = order
            sampling = SamplingParams(max_tokens=1, temperature=0.0, seed=self._asked)
            request = Generate(
                order.request,
                PREFILL_CLIENT,
                message.prompt,
                sampling,
                namespace=message.namespace,
                is_streamed=False,
                saved_from=message.first,
            )
            yield Delivery(now, prefill, request)
        yield Delivery(now, decode, PagesFound(message.fetch, len(keys)))

    def _save(self, prefill: int, message: SavePages, at: float) -> Iterator[Delivery]:
        saved = {key for part in message.saves for key in split_keys(part.keys)}
        for order in [each for each in self._orders.values() if each.prefill == prefill]:
            before = order.computed
            while order.computed < len(order.keys) and order.keys[order.computed] in saved:
                order.computed += 1
            if order.computed > before:
                order.ready_at = at
                yield from self._send(order, at)

    def _note_over(self, request: str, at: float) -> Iterator[Delivery]:
        order = self._by_request.pop(request)
        order.is_over = True
        if (order.decode, order.fetch) in self._orders:
            yield from self._send(order, at)

    def _send(self, order: _Order, at: float) -> Iterator[Delivery]:
        """Sends the computed pages of an order if they are taken, and notes when they have come."""
        if not order.is_pulled:
            return
        pages, pair = order.computed - order.sent, (order.decode, order.prefill)
        begin = max(at, order.ready_at, self._free_at[order.decode], self._free_at[order.prefill])
        if pages:
            order.sent = order.computed
            order.arrives_at = begin + pages * self._page_s
            self._free_at[order.decode] = self._free_at[order.prefill] = order.arrives_at
            heappush(self._arriving, (order.arrives_at, pair, pages))
        if order.sent == len(order.keys) or order.is_over:
            del self._orders[order.decode, order.fetch]
            self._owed[pair] -= len(order.keys) - order.sent
            end = max(at, order.arrives_at)
            self.waits_s.append(end - order.asked_at)
            yield Delivery(end, order.decode, PagesFetched(order.fetch, order.sent))

    def _end(self, decode: int, fetch: int, now: float) -> Iterator[Delivery]:
        """Ends a fetch in any state."""
        order = self._orders.pop((decode, fetch), None)
        if order is None:
            return
        self._owed[decode, order.prefill] -= len(order.keys) - order.sent
        if not order.is_over:
            yield Delivery(now, order.prefill, Abort(order.request))
