"""A small page store: pages and states by key, the oldest evicted first, and fetches that hold theirs."""

from __future__ import annotations

from itertools import takewhile

import numpy as np
from arbora.runtime.messages import (
    DiscardPages,
    EndFetch,
    FetchPages,
    FindPages,
    ForgetPages,
    LocatePages,
    PagesFetched,
    PagesForgotten,
    PagesFound,
    PagesInTiers,
    PagesLocated,
    PageStoreInbox,
    RestoredPages,
    RestoredState,
    SavedPages,
    SavedState,
    UsedPages,
)
from numpy.typing import NDArray

KEY_BYTES = 16
PIECES = 2
Page = NDArray[np.int64]


def keys_of(keys: bytes) -> list[bytes]:
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


class FakeStore:
    """`contents` are the device's pages of each group, `states` the tokens of each state by its place. Holds
    `most` pages and as many states beside those of fetches. A state or a windowed page takes `PIECES`
    places."""

    def __init__(self, contents: list[Page], most: int, states: dict[int, list[int]]) -> None:
        self.contents = contents
        self.device_states = states
        self.most = most
        self.pages: dict[bytes, tuple[str, Page]] = {}
        self.states: dict[bytes, tuple[str, list[int]]] = {}
        self.held: dict[int, list[list[Page]]] = {}  # of each group
        self.held_states: dict[int, list[int]] = {}
        self.found: dict[int, list[list[bytes]]] = {}
        self.found_states: dict[int, bytes] = {}
        self.asked: list[PageStoreInbox] = []
        self.forgotten: list[PagesForgotten] = []
        self.located: list[PagesLocated] = []
        self.restored = 0
        self.restored_windows = 0
        self.restored_states = 0
        self.saved = 0
        self.used: list[list[bytes]] = []
        self.used_others: list[list[bytes]] = []

    def save(self, saves: list[SavedPages]) -> None:
        for part in saves:
            ids = np.frombuffer(part.pages, np.int32)
            for key, page in zip(keys_of(part.keys), ids, strict=True):
                content = self.contents[part.group][page].copy()
                assert -1 not in content, "a page that was never written is saved"
                self.saved += key not in self.pages
                known = self.pages.pop(key, None)
                assert known is None or np.array_equal(known[1], content), "one key, two contents"
                self.pages[key] = part.namespace, content
        for key in list(self.pages)[: -self.most or None]:
            del self.pages[key]

    def save_states(self, saves: list[SavedState]) -> None:
        for save in saves:
            state = list(self.device_states[save.place])
            _, known = self.states.pop(save.key, (None, state))
            assert known == state, "one key, two states"
            self.states[save.key] = save.namespace, state
        for key in list(self.states)[: -self.most or None]:
            del self.states[key]

    def restore_states(self, restores: list[RestoredState]) -> None:
        for restore in restores:
            self.device_states[restore.place] = list(self.held_states[restore.fetch])
            self.restored_states += 1

    def answer(self) -> list[PagesFound | PagesFetched]:
        """The answers to all questions so far; those to `LocatePages` are in `located`."""
        asked, self.asked = self.asked, []
        answers: list[PagesFound | PagesFetched] = []
        for message in asked:
            match message:
                case FindPages():
                    answers.append(self._find_end(message) if message.others else self._find(message))
                case FetchPages():
                    found = list(map(self._stored, self.found.pop(message.fetch)))
                    self.held[message.fetch] = [[self.pages[key][1] for key in keys] for keys in found]
                    pieces, state = 0, self.found_states.pop(message.fetch, b"")
                    if state in self.states:
                        pieces, self.held_states[message.fetch] = PIECES, self.states[state][1]
                    pages, windowed = len(found[0]), sum(map(len, found[1:]))
                    answers.append(PagesFetched(message.fetch, pages + PIECES * windowed + pieces))
                case EndFetch():
                    for of_fetch in (self.found, self.held, self.found_states, self.held_states):
                        of_fetch.pop(message.fetch, None)
                case UsedPages():
                    self.used.append(keys_of(message.keys))
                    self.used_others += map(keys_of, message.others)
                case LocatePages():
                    self.located.append(
                        PagesLocated(message.question, list(map(self._located, message.groups)))
                    )
        return answers

    @property
    def held_pages(self) -> int:
        groups = [group for held in self.held.values() for group in held]
        return sum(map(len, groups)) + PIECES * len(self.held_states)

    def _find(self, message: FindPages) -> PagesFound:
        found = self._stored(keys_of(message.keys))
        if found:
            self.found[message.fetch] = [found]
        return PagesFound(message.fetch, len(found))

    def _find_end(self, message: FindPages) -> PagesFound:
        """The last possible end before which all is stored. Tries one after the other."""
        keys = keys_of(message.keys)
        found, ends = self._stored(keys), len(message.others[0].needed) // 4
        for number in reversed(range(ends)):
            before = len(keys) - ends + number + 1
            others = []
            for other in message.others:
                names, needed = keys_of(other.keys), np.frombuffer(other.needed, np.int32)[number]
                last = len(names) - (len(keys) - before)
                assert 0 <= last - needed <= last <= len(names)
                others.append([name for name in names[last - needed : last] if any(name)])
            wanted = [name for names in others for name in names]
            if before <= len(found) and all(name in self.pages or name in self.states for name in wanted):
                self.found[message.fetch] = [found[: max(0, before)]]
                if len(self.contents) > 1:
                    self.found[message.fetch] += others
                else:
                    [self.found_states[message.fetch]] = wanted
                return PagesFound(message.fetch, max(0, before) + PIECES * len(wanted), before)
        return PagesFound(message.fetch, 0)

    def _located(self, keys: bytes) -> PagesInTiers:
        """All stored pages are in host memory."""
        looked_up = keys_of(keys)
        return PagesInTiers(len(looked_up), sum(key in self.pages for key in looked_up), 0)

    def _stored(self, keys: list[bytes]) -> list[bytes]:
        return list(takewhile(self.pages.__contains__, keys))

    def restore(self, restores: list[RestoredPages]) -> None:
        for part in restores:
            for at, page in enumerate(np.frombuffer(part.pages, np.int32), part.first):
                self.contents[part.group][page] = self.held[part.fetch][part.group][at]
                self.restored += part.group == 0
                self.restored_windows += part.group > 0

    def end(self, fetches: list[int]) -> None:
        for fetch in fetches:
            del self.held[fetch]
            self.held_states.pop(fetch, None)

    def forget(self, message: ForgetPages) -> None:
        self.forgotten.append(PagesForgotten(message.client, message.dropped))
        for key, (namespace, _) in list(self.pages.items()):
            if namespace == message.namespace or (
                message.namespace is None and namespace.startswith(message.scope)
            ):
                del self.pages[key]
                message.dropped.host_pages += 1
        for key, (namespace, _) in list(self.states.items()):
            if namespace == message.namespace or (
                message.namespace is None and namespace.startswith(message.scope)
            ):
                del self.states[key]

    def discard(self, message: DiscardPages) -> None:
        for key in [*keys_of(message.keys), *(key for other in message.others for key in keys_of(other))]:
            self.pages.pop(key, None)
            self.states.pop(key, None)
