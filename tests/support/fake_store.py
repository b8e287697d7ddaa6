"""A small page store: pages by key, the oldest evicted first, and fetches that hold their pages."""

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
    SavedPages,
    UsedPages,
)
from numpy.typing import NDArray

KEY_BYTES = 16
Page = NDArray[np.int64]


def keys_of(keys: bytes) -> list[bytes]:
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


class FakeStore:
    """`contents` are the device's pages. Holds `most` pages beside those of fetches."""

    def __init__(self, contents: Page, most: int) -> None:
        self.contents = contents
        self.most = most
        self.pages: dict[bytes, tuple[str, Page]] = {}
        self.held: dict[int, list[Page]] = {}
        self.found: dict[int, list[bytes]] = {}
        self.asked: list[PageStoreInbox] = []
        self.forgotten: list[PagesForgotten] = []
        self.located: list[PagesLocated] = []
        self.restored = 0
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

    def answer(self) -> list[PagesFound | PagesFetched]:
        """The answers to all questions so far; those to `LocatePages` are in `located`."""
        asked, self.asked = self.asked, []
        answers: list[PagesFound | PagesFetched] = []
        for message in asked:
            match message:
                case FindPages():
                    answers.append(PagesFound(message.fetch, self._find(message)))
                case FetchPages():
                    keys = self._stored(self.found.pop(message.fetch))
                    self.held[message.fetch] = [self.pages[key][1] for key in keys]
                    answers.append(PagesFetched(message.fetch, len(keys)))
                case EndFetch():
                    self.found.pop(message.fetch, None)
                    self.held.pop(message.fetch, None)
                case UsedPages():
                    self.used.append(keys_of(message.keys))
                case LocatePages():
                    self.located.append(
                        PagesLocated(message.question, list(map(self._located, message.groups)))
                    )
        return answers

    @property
    def held_pages(self) -> int:
        return sum(map(len, self.held.values()))

    def _find(self, message: FindPages) -> int:
        found = self._stored(keys_of(message.keys))
        if found:
            self.found[message.fetch] = found
        return len(found)

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

    def forget(self, message: ForgetPages) -> None:
        self.forgotten.append(PagesForgotten(message.client, message.dropped))
        for key, (namespace, _) in list(self.pages.items()):
            if namespace == message.namespace or (
                message.namespace is None and namespace.startswith(message.scope)
            ):
                del self.pages[key]
                message.dropped.host_pages += 1

    def discard(self, message: DiscardPages) -> None:
        for key in keys_of(message.keys):
            self.pages.pop(key, None)
