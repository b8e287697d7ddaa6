"""Moves pages and states between the device and host memory, as step plans and other messages say."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch

from ....kernels.pages import page_moves
from ...messages import (
    PAGE_ID_BYTES,
    DiscardPages,
    FlushPages,
    ForgetPages,
    RestoredPages,
    RestoredState,
    SavedPages,
    SavedState,
    SavePages,
    StepPlan,
    ToPageStore,
)
from .copies import (
    Copies,
    CopyStream,
    CudaCopyStream,
    HostCopyStream,
    HostRestore,
    LoadLayers,
    Restore,
    StreamRestore,
)
from .host_pool import KEY_BYTES, Entry, split_keys
from .page_store import PageStore

PAGES_AT_ONCE = 8
"""A flush copies this many pages while the store writes the previous ones."""
FLUSH_TIMEOUT_S = 5.0
"""A flush waits this long for a place in memory, which a page frees when it is written to disk."""


Page = tuple[int, int]
"""group of layers, and number of the page"""


class StatePlaces(Protocol):
    """The memory that holds the states of recurrent layers (see `RecurrentStates`)."""

    def pack(self, place: int) -> torch.Tensor: ...

    def unpack(self, place: int, packed: torch.Tensor) -> None: ...


class CopyStreams(NamedTuple):
    """Streams of copies to and from host memory, which do not wait for each other."""

    saving: CopyStream
    restoring: CopyStream | None
    """None: the step that reads the pages copies them"""


@dataclass(eq=False)
class Save:
    """Consecutive pages that are copied to host memory together. The page store can't find them yet."""

    pages: Set[Page]
    entries: list[Entry]
    copies: Copies
    forgotten: list[Entry] = field(default_factory=list)
    """entries whose places are freed after the copies, and which are never published"""

    def forget(self, matches: Callable[[Entry], bool]) -> None:
        self.forgotten += [entry for entry in self.entries if matches(entry)]
        self.entries = [entry for entry in self.entries if not matches(entry)]


@dataclass(frozen=True)
class StepMoves:
    """What a step moves: it publishes the saves that began before it."""

    restore: Restore | None
    saves: list[Save]
    fetches_over: Sequence[int]
    restored_windows: Sequence[Copies] = ()


class PageMover:
    """Copies pages between the device and host memory: on CUDA beside the steps, on a CPU in order with them.

    kvs: each layer's cache (see `kv_pool.allocate_pool`).
    """

    def __init__(
        self,
        kvs: Sequence[torch.Tensor],
        store: PageStore,
        streams: CopyStreams | None = None,
        states: StatePlaces | None = None,
        groups: Sequence[Sequence[int]] = (),
    ) -> None:
        """streams: of copies; None: the default streams of the device. states: None: no layer is recurrent.
        groups: the numbers of each group's layers; empty: there is one group"""
        self._states = states
        self._store = store
        self._layers = len(kvs)
        self._first_group = groups[0] if groups else range(len(kvs))
        size = len(self._first_group)
        self._pieces = [
            [[kvs[layer] for layer in group[at : at + size]] for at in range(0, len(group), size)]
            for group in groups or [self._first_group]
        ]
        """of each group, the caches of the layers in each piece of a page"""
        kv = kvs[self._first_group[0]]
        shape = (store.pool.places, size, kv.shape[0] * kv.shape[1], -1)
        self._memory = store.pool.memory.view(kv.dtype).view(shape)
        self._streams = streams or _streams(kv.device)
        self._open: list[Save] = []
        """the saves that are not published"""
        self._begun: list[Save] = []
        """saves begun since the last step, which the next step publishes"""

    def warm_up(self) -> None:
        """Compiles the kernels of copies; page 0 keeps its contents."""
        entry = self._store.pool.reserve(bytes(KEY_BYTES))
        if entry is not None:
            [kvs] = self._pieces[0]
            moves = page_moves(kvs, [0], self._memory, [entry.place])
            self._streams.saving.launch(moves.save, after_steps=True)
            self._streams.saving.launch(lambda: moves.load(range(len(kvs)))).wait()
            self._store.pool.release([entry])

    @torch.inference_mode()
    def handle(self, message: ToPageStore) -> None:
        """Begins to save pages, forgets pages, returns when all are in tiers that outlive the process, or
        gives the store an answer, before which the store gets all pages that were saved earlier."""
        match message:
            case SavePages():
                self.save_computed(message)
            case FlushPages():
                self.flush(message)
            case ForgetPages() | DiscardPages():
                self.forget(message)
            case _:
                self.publish_saves()
                self._store.take_answer(message)

    def begin(self, plan: StepPlan, written: Callable[[], Iterable[Page]]) -> StepMoves:
        """Launches a step's saves and restores before the step. Its writes wait for the saves of their pages.

        The copies need not wait for the steps before: a page is evicted, and given to another request, only
        when no running step reads or writes it.

        written: the pages that the step writes besides the restored ones
        """
        self.save(plan.saves)
        self.save_states(plan.saved_states)
        running = [save for save in self._open if not save.copies.ready()]
        if running:
            for copies in _copies_of(running, set(written())):
                copies.precede_launches()
        pages = [part for part in plan.restores if part.group == 0]
        restore = self._restore(pages, running) if pages else None
        windows = [copies for part in plan.restores for copies in self._restore_windows(part, running)]
        self._restore_states(plan.restored_states)
        return StepMoves(restore, self._take_begun(), plan.fetches_over, windows)

    def finish(self, moves: StepMoves) -> float:
        """Waits for the copies of a computed step, publishes saved pages and ends fetches. Returns the
        milliseconds that restoring took."""
        restored_ms = 0.0 if moves.restore is None else moves.restore.finish()
        for copies in moves.restored_windows:
            copies.wait()  # a step without rows has waited for nothing
        self._publish(moves.saves)
        for fetch in moves.fetches_over:
            self._store.end(fetch)
        return restored_ms

    @property
    def _pages_at_once(self) -> int:
        return max(1, min(PAGES_AT_ONCE, self._store.pool.places // 2))

    @property
    def is_saving(self) -> bool:
        """Whether saves have begun that no running step will publish."""
        return bool(self._begun)

    def saves_copied(self) -> bool:
        """Whether `publish_saves` returns without waiting for the device."""
        return all(save.copies.ready() for save in self._begun)

    def publish_saves(self) -> None:
        """Lets the page store find the pages of begun saves."""
        self._publish(self._take_begun())

    def _take_begun(self) -> list[Save]:
        begun, self._begun = self._begun, []
        return begun

    def _publish(self, saves: Sequence[Save]) -> None:
        """Waits for the copies of these saves."""
        for save in saves:
            save.copies.wait()
            self._open.remove(save)
            self._store.add_saved(save.entries)
            self._store.pool.release(save.forgotten)

    def save(self, saves: Sequence[SavedPages], timeout: float = 0.0, after_steps: bool = False) -> None:
        """Copies pages to host memory. A page that gets no place within `timeout` seconds is lost.

        after_steps: running steps may still write some of the pages
        """
        for part in saves:
            pages = np.frombuffer(part.pages, np.int32).tolist()
            keys = self._store.list_pieces(part.keys, part.group)
            pieces = self._pieces[part.group]
            for number, kvs in enumerate(pieces):
                save = self._copy_pages(kvs, pages, keys[number :: len(pieces)], part, timeout, after_steps)
                if save is not None:
                    self._begin_save(save)

    def _copy_pages(
        self,
        kvs: Sequence[torch.Tensor],
        pages: Sequence[int],
        keys: Sequence[bytes],
        part: SavedPages,
        timeout: float,
        after_steps: bool,
    ) -> Save | None:
        """Copies the layers `kvs` of each page to host memory, under its key; None if the store has them all.
        The other arguments are those of `save`."""
        pool, copied, known = self._store.pool, list[tuple[int, Entry]](), list[Entry]()
        for page, key in zip(pages, keys, strict=True):
            there = pool.hold(key)
            if there is not None:
                known.append(there)
                continue
            entry = pool.reserve(key, part.namespace, timeout)
            if entry is None:
                self._store.count_lost(1)
                continue
            self._memory[entry.place, len(kvs) :] = 0  # bytes of another page, perhaps of another namespace
            copied.append((page, entry))
        pool.release(known)  # so that its pages count as used
        if not copied:
            return None
        ids, entries = [page for page, _ in copied], [entry for _, entry in copied]
        moves = page_moves(kvs, ids, self._memory, [entry.place for entry in entries])
        copies = self._streams.saving.launch(moves.save, after_steps=after_steps)
        return Save({(part.group, page) for page in ids}, entries, copies)

    def save_states(self, states: Sequence[SavedState], timeout: float = 0.0) -> None:
        """Copies states to host memory. Later launches wait for it. A state for which no place is free within
        `timeout` seconds is lost; with a timeout, earlier pieces are published meanwhile."""
        for state in states:
            assert self._states is not None
            packed = self._states.pack(state.place).split(self._store.pool.place_bytes)
            pieces = list(zip(self._store.list_pieces(state.key, 1), packed, strict=True))
            at_once = self._pages_at_once if timeout else len(pieces)
            for at in range(0, len(pieces), at_once):
                if not self._save_pieces(pieces[at : at + at_once], state.namespace, timeout):
                    break
                if timeout:
                    self.publish_saves()

    def _save_pieces(
        self, pieces: Sequence[tuple[bytes, torch.Tensor]], namespace: str, timeout: float
    ) -> bool:
        """Copies pieces with their keys to host memory. Returns False if they do not all get places."""
        pool, copied = self._store.pool, list[tuple[Entry, torch.Tensor]]()
        if not timeout and not pool.has_room(sum(key not in pool for key, _ in pieces)):
            self._store.count_lost(len(pieces))
            return False  # before the first pieces evict other pages
        for key, piece in pieces:
            there = pool.hold(key)
            if there is not None:
                pool.release([there])
                continue
            entry = pool.reserve(key, namespace, timeout)
            if entry is None:
                pool.release(entry for entry, _ in copied)
                self._store.count_lost(len(pieces))
                return False
            pool.memory[entry.place, len(piece) :] = 0  # bytes of another page, perhaps of another namespace
            copied.append((entry, piece))

        def copy() -> None:
            for entry, piece in copied:
                pool.memory[entry.place, : len(piece)].copy_(piece, non_blocking=True)

        if copied:
            copies = self._streams.saving.launch(copy, after_steps=True)
            copies.precede_launches()
            self._begin_save(Save(frozenset(), [entry for entry, _ in copied], copies))
        return True

    def save_computed(self, message: SavePages) -> None:
        """Begins to save pages and states that no lower tier has yet or another server waits for. The steps
        launched so far compute them."""
        saves = [part if part.is_sent else self._select_unsaved(part) for part in message.saves]
        self.save(saves, after_steps=True)
        self.save_states(self._select_unsaved_states(message.states))

    def _begin_save(self, save: Save) -> None:
        self._open.append(save)
        self._begun.append(save)

    def _restore(self, restores: Sequence[RestoredPages], running: Sequence[Save]) -> Restore:
        """Copies fetched pages of the first group to the device."""
        pages, places = list[int](), list[int]()
        for part in restores:
            ids = np.frombuffer(part.pages, np.int32).tolist()
            pages += ids
            places += self._store.places(part.fetch, part.first, len(ids))
        [kvs] = self._pieces[0]
        load = _load_first_group(page_moves(kvs, pages, self._memory, places).load, self._first_group)
        if self._streams.restoring is None:
            return HostRestore(load, self._layers)
        size = len(pages) * self._memory[0].nbytes
        before = _copies_of(running, {(0, page) for page in pages})
        return StreamRestore(self._streams.restoring, load, self._layers, size, before)

    def _restore_windows(self, part: RestoredPages, running: Sequence[Save]) -> Iterator[Copies]:
        """Copies fetched pages of a windowed group to the device, before all later launches; nothing if they
        are of the first group."""
        if part.group == 0:
            return
        pages, pieces = np.frombuffer(part.pages, np.int32).tolist(), self._pieces[part.group]
        places = self._store.places(part.fetch, part.first, len(pages), part.group)
        before = _copies_of(running, {(part.group, page) for page in pages})
        stream = self._streams.restoring or self._streams.saving
        for number, kvs in enumerate(pieces):
            moves = page_moves(kvs, pages, self._memory, places[number :: len(pieces)])
            copies = stream.launch(partial(moves.load, range(len(kvs))), before)
            copies.precede_launches()
            yield copies

    def _restore_states(self, restores: Sequence[RestoredState]) -> None:
        """Copies fetched states to the device, before all later launches."""
        for restore in restores:
            assert self._states is not None
            places = self._store.places(restore.fetch, 0, 1, group=1)
            self._states.unpack(restore.place, self._store.pool.memory[places].reshape(-1))

    def forget(self, message: ForgetPages | DiscardPages) -> None:
        """Forgets pages in all tiers, and those that are being saved."""
        if isinstance(message, DiscardPages):
            keys = set(self._store.list_discarded(message))
            matches: Callable[[Entry], bool] = lambda entry: entry.key in keys  # noqa: E731
        else:
            matches = lambda entry: entry.matches(message.scope, message.namespace)  # noqa: E731
        for save in self._open:
            save.forget(matches)
        self._store.forget(message)

    def flush(self, message: FlushPages) -> None:
        """Returns when all pages that fit are in tiers that outlive the process."""
        self.finish(StepMoves(None, self._take_begun(), message.fetches_over))
        if not self._store.tiers:
            return
        of_states = [key for state in message.states for key in self._store.list_pieces(state.key, 1)]
        of_pages = [key for part in message.saves for key in self._store.list_pieces(part.keys, part.group)]
        self._store.expect([*of_states, *of_pages])
        self._store.write_again([key for key in of_states if self._store.tiers.needs(key)])
        self.save_states(self._select_unsaved_states(message.states), timeout=FLUSH_TIMEOUT_S)
        for part in message.saves:
            at_once = max(1, self._pages_at_once // self._store.pieces[part.group])
            for few in _divide(self._select_unsaved(part), at_once):
                self._store.write_again(self._store.list_pieces(few.keys, few.group))
                self.save([few], timeout=FLUSH_TIMEOUT_S)
                self.publish_saves()
        self._store.finish()

    def _select_unsaved_states(self, states: Sequence[SavedState]) -> list[SavedState]:
        """The states of which the lower tiers lack a piece."""
        return [state for state in states if self._needs(state.key, 1)]

    def _needs(self, key: bytes, group: int) -> bool:
        """Whether a lower tier lacks a piece of the group's page, or of the state."""
        return any(map(self._store.tiers.needs, self._store.list_pieces(key, group)))

    def _select_unsaved(self, part: SavedPages) -> SavedPages:
        """The pages that no lower tier has yet."""
        pages = zip(split_keys(part.keys), np.frombuffer(part.pages, np.int32).tolist(), strict=True)
        lacking = [(key, page) for key, page in pages if self._needs(key, part.group)]
        ids = np.array([page for _, page in lacking], np.int32)
        return SavedPages(part.namespace, b"".join(key for key, _ in lacking), ids.tobytes(), part.group)


def _divide(part: SavedPages, pages: int) -> Iterator[SavedPages]:
    """Splits into parts of at most `pages` pages."""
    for at in range(0, len(part.pages) // PAGE_ID_BYTES, pages):
        keys = part.keys[at * KEY_BYTES : (at + pages) * KEY_BYTES]
        ids = part.pages[at * PAGE_ID_BYTES : (at + pages) * PAGE_ID_BYTES]
        yield SavedPages(part.namespace, keys, ids, part.group)


def _load_first_group(load: LoadLayers, group: Sequence[int]) -> LoadLayers:
    """Loads those of a model's layers that are in the group. load: takes the layers' places in the group"""

    def load_some(layers: range) -> None:
        some = range(bisect_left(group, layers.start), bisect_left(group, layers.stop))
        if some:
            load(some)

    return load_some


def _streams(device: torch.device) -> CopyStreams:
    if device.type != "cuda":
        return CopyStreams(HostCopyStream(), None)
    return CopyStreams(CudaCopyStream(device), CudaCopyStream(device))


def _copies_of(saves: Sequence[Save], pages: set[Page]) -> list[Copies]:
    """The copies that save any of these pages."""
    return [save.copies for save in saves if not pages.isdisjoint(save.pages)]
