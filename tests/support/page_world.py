"""A page store with its thread, its sockets and device pages, as in a model process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import zmq
from arbora.runtime.messages import (
    FetchPages,
    FindPages,
    FlushPages,
    LocatePages,
    NeededEntries,
    PagesFetched,
    PagesForgotten,
    PagesFound,
    PagesInTiers,
    PagesLocated,
    PageStoreInbox,
    RestoredPages,
    SavedPages,
    StepPlan,
    StoreCounts,
    StoreReport,
)
from arbora.runtime.model.interface.cache_spec import CacheSpec, StateTensor
from arbora.runtime.model.recurrent_states import RecurrentStates
from arbora.runtime.model.tiers.disk import DiskStore
from arbora.runtime.model.tiers.host_memory import HostMemory
from arbora.runtime.model.tiers.host_pool import HostPool
from arbora.runtime.model.tiers.lower_tiers import LowerTiers
from arbora.runtime.model.tiers.page_mover import PageMover, StepMoves
from arbora.runtime.model.tiers.page_store import PageStore
from arbora.runtime.model.tiers.remote import RemoteStore
from arbora.runtime.processes.sockets import Inbox, Outbox
from interpreted_triton import DEVICE

PAGES, LAYERS, HEADS, PAGE_SIZE, HEAD_DIM = 32, 3, 2, 4, 8
PAGE_BYTES = LAYERS * 2 * HEADS * PAGE_SIZE * HEAD_DIM * 4
LIMIT = 64 << 20
STATES = CacheSpec(
    HEADS,
    HEADS,
    HEAD_DIM,
    windows=(None,) * LAYERS,
    states=(StateTensor((100, 9), None), StateTensor((3, 33), torch.bfloat16)),
)
"""a state takes two pages and a half"""
Answer = PagesFound | PagesFetched | PagesLocated | PagesForgotten | StoreReport


class World:
    def __init__(
        self,
        directory: Path,
        places: int,
        disk: bool,
        limit: int = LIMIT,
        remote: RemoteStore | None = None,
        states: int = 0,
        groups: Sequence[Sequence[int]] = (),
    ) -> None:
        """states: places for states of recurrent layers. groups: the layers of each group, of which the first
        has `LAYERS`; empty: there is no windowed group"""
        shape = (2, HEADS, PAGES, PAGE_SIZE, HEAD_DIM)
        self.kvs = [torch.randn(shape, device=DEVICE) for _ in range(sum(map(len, groups)) or LAYERS)]
        pool = HostPool(HostMemory(places * PAGE_BYTES, pinned=DEVICE.type == "cuda"), PAGE_BYTES)
        tiers = LowerTiers(DiskStore(directory, limit) if disk else None, remote)
        pieces = [1, *(-(-len(group) // LAYERS) for group in groups[1:])]
        if states:
            pieces.append(-(-STATES.state_bytes(torch.float32) // PAGE_BYTES))
        self.store = PageStore(pool, tiers, pieces)
        self.states = RecurrentStates(STATES, states, 1, torch.float32, DEVICE)
        self.mover = PageMover(self.kvs, self.store, states=self.states, groups=groups)
        self.counts = StoreCounts()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._fetches = 0
        store, scheduler = f"ipc://{directory}/s", f"ipc://{directory}/m"
        inbox: Inbox[PageStoreInbox] = Inbox(self._context, store, PageStoreInbox, 1)
        self._inbox: Inbox[Answer] = Inbox(self._context, scheduler, Answer, 1)
        self.outbox = Outbox(self._context, store, 1)
        self.store.start(inbox, Outbox(self._context, scheduler, 1))

    def save(self, keys: list[int], pages: list[int], namespace: str = "") -> None:
        self.mover.save([SavedPages(namespace, key_bytes(keys), packed(pages))])
        self.mover.publish_saves()

    def flush(self, saves: list[SavedPages], fetches_over: Sequence[int] = ()) -> None:
        self.mover.flush(FlushPages(saves, list(fetches_over)))

    def fetch(self, keys: list[int], namespace: str = "") -> tuple[int, int]:
        """The fetch's number, and how many pages were fetched."""
        number, pages = self.find(keys, namespace)
        if pages:
            self.outbox.send(FetchPages(number))
            pages = self.fetched()[1]
        return number, pages

    def find(self, keys: list[int], namespace: str = "") -> tuple[int, int]:
        """The fetch's number, and how many pages are stored."""
        self._fetches += 1
        self.outbox.send(FindPages(self._fetches, namespace, key_bytes(keys)))
        while not isinstance(message := self.receive(), PagesFound):
            pass
        assert message.fetch == self._fetches
        return message.fetch, message.pages

    def locate(self, *groups: list[int]) -> list[PagesInTiers]:
        self.outbox.send(LocatePages(7, [key_bytes(keys) for keys in groups]))
        while not isinstance(message := self.receive(), PagesLocated):
            pass
        assert message.question == 7
        return message.groups

    def fetched(self) -> tuple[int, int]:
        """The next fetch that has its pages, and how many."""
        while not isinstance(message := self.receive(), PagesFetched):
            pass
        return message.fetch, message.pages

    def restore(self, fetch: int, first: int, pages: list[int]) -> None:
        moves = self.begin_restore(fetch, first, pages, [fetch])
        assert moves.restore is not None
        for layer in range(LAYERS):
            moves.restore.arrive(layer)
        assert self.mover.finish(moves) > 0

    def begin_restore(
        self, fetch: int, first: int, pages: list[int], fetches_over: Sequence[int] = ()
    ) -> StepMoves:
        restores = [RestoredPages(fetch, first, packed(pages))]
        return self.mover.begin(StepPlan(1, [], restores=restores, fetches_over=list(fetches_over)), list)

    def wait_for_counts(self, **expected: int) -> None:
        while any(getattr(self.counts, name) != value for name, value in expected.items()):
            self.receive()

    def content(self, page: int) -> torch.Tensor:
        return torch.stack([kv[:, :, page] for kv in self.kvs])

    def receive(self) -> Answer:
        message = self._inbox.receive(60_000)
        assert message is not None, "the page store said nothing"
        if isinstance(message, StoreReport):
            self.counts = message.counts
        return message


def find_end(
    world: World, keys: list[int], others: Sequence[tuple[list[int], list[int]]], fetch: int = 1
) -> PagesFound:
    """others: keys and how many of them each end needs (see `NeededEntries`)"""
    needs = [NeededEntries(key_bytes(each), packed(needed)) for each, needed in others]
    world.outbox.send(FindPages(fetch, "", key_bytes(keys), needs))
    while not isinstance(message := world.receive(), PagesFound):
        pass
    return message


def packed(pages: list[int]) -> bytes:
    return np.array(pages, np.int32).tobytes()


def key_bytes(keys: list[int]) -> bytes:
    return b"".join(key.to_bytes(16, "big") for key in keys)
