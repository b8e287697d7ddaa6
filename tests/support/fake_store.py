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
    """`contents` are the device's pages, `states` the tokens of each state by its place. Holds `most` pages
    and as many states beside those of fetches. A state takes `PIECES` places."""

    def __init__(self, contents: Page, most: int, states: dict[int, list[int]]) -> None:
        self.contents = contents
        self.device_states = states
        self.most = most
        self.pages: dict[bytes, tuple[str, Page]] = {}
        self.states: dict[bytes, tuple[str, list[int]]] = {}
        self.held: dict[int, list[Page]] = {}
        self.held_states: dict[int, list[int]] = {}
        self.found: dict[int, list[bytes]] = {}
        self.found_states: dict[int, bytes] = {}
        self.asked: list[PageStoreInbox] = []
        self.forgotten: list[PagesForgotten] = []
        self.located: list[PagesLocated] = []
        self.restored = 0
        self.restored_states = 0
        self.saved = 0
        self.used: list[list[bytes]] = []

    def save(self, saves: list[SavedPages]) -> None:
        for part in saves:
            ids = np.frombuffer(part.pages, np.int32)
            for key, page in zip(keys_of(part.keys), ids, strict=True):
                content = self.contents[page].copy()
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
                    answers.append(self._find_state(message) if message.states else self._find(message))
                case FetchPages():
                    keys = self._stored(self.found.pop(message.fetch))
                    self.held[message.fetch] = [self.pages[key][1] for key in keys]
                    pieces, state = 0, self.found_states.pop(message.fetch, b"")
                    if state in self.states:
                        pieces, self.held_states[message.fetch] = PIECES, self.states[state][1]
                    answers.append(PagesFetched(message.fetch, len(keys) + pieces))
                case EndFetch():
                    for of_fetch in (self.found, self.held, self.found_states, self.held_states):
                        of_fetch.pop(message.fetch, None)
                case UsedPages():
                    self.used.append(keys_of(message.keys))
                case LocatePages():
                    self.located.append(
                        PagesLocated(message.question, list(map(self._located, message.groups)))
                    )
        return answers

    @property
    def held_pages(self) -> int:
        return sum(map(len, self.held.values())) + PIECES * len(self.held_states)

    def _find(self, message: FindPages) -> PagesFound:
        found = self._stored(keys_of(message.keys))
        if found:
            self.found[message.fetch] = found
        return PagesFound(message.fetch, len(found))

    def _find_state(self, message: FindPages) -> PagesFound:
        keys, states = keys_of(message.keys), keys_of(message.states)
        found = self._stored(keys)
        for number in reversed(range(len(states))):
            before = len(keys) - len(states) + number + 1
            if before <= len(found) and states[number] in self.states:
                self.found[message.fetch] = found[: max(0, before)]
                self.found_states[message.fetch] = states[number]
                return PagesFound(message.fetch, max(0, before) + PIECES, before)
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
                self.contents[page] = self.held[part.fetch][at]
                self.restored += 1

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
        for key in keys_of(message.keys):
            self.pages.pop(key, None)
        for key in keys_of(message.states):
            self.states.pop(key, None)
