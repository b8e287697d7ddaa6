"""The part of one request's tokens that the page store is known to have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import takewhile

from ...radix_cache import KEY_BYTES, NO_KEY, Missing, split_keys


@dataclass(slots=True)
class Fetch:
    """A request to the page store for the full pages of a prompt that begin with page `first`, and for the
    recurrent layers' state or the windowed pages before some end."""

    id: int
    first: int
    found: int | None = None  # places of what is stored; None until `PagesFound` arrives
    only_end: int | None = None
    """index of the page after which the fetched state or windowed pages belong; None: there are none, and a
    request may go on after any of the fetched pages"""
    windows: list[list[int]] = field(default_factory=list)
    """indices of the fetched pages of each windowed group"""
    pages: int | None = None  # places of what is ready to be restored; None until `PagesFetched` arrives
    requested: bool = False  # whether `FetchPages` was sent
    restored: bool = False  # whether a step in flight or done restores some of the pages

    @property
    def unanswered(self) -> bool:
        return self.pages is None if self.requested else self.found is None

    @property
    def size(self) -> int:
        """The number of places that were fetched; before that, of those that were found, or 0."""
        return (self.found or 0) if self.pages is None else self.pages

    @property
    def end(self) -> int:
        """The index of the page after the last one that a request can use."""
        return self.first + self.size if self.only_end is None else self.only_end


@dataclass(slots=True)
class StoreLookup:
    """The part of a request's tokens that was in the tree when the page store was asked for the rest."""

    asked: Missing  # what the store was asked for
    missing: list[bytes]  # keys of full pages, then of the others; empty once the store has answered
    in_copy: Collection[bytes]  # keys among `missing` of what was still being copied to the store
    attempt: int  # number of the look-up since the request was queued, from 1

    def answer(self, found: int) -> None:
        """Notes that the first `found` missing pages are stored. Keeps only later pages in `in_copy`."""
        if self.asked.others:  # what is in copy may soon be the rest of what an end needs
            self.in_copy = [] if found else list(filter(self.in_copy.__contains__, self.missing))
        else:
            self.in_copy = list(takewhile(self.in_copy.__contains__, self.missing[found:]))
        self.missing = []

    def list_windows(self, end: int) -> list[list[int]]:
        """The indices of each windowed group's pages that the store has for a request that goes on after the
        page before index `end`."""
        last = self.asked.first + len(self.asked.keys) // KEY_BYTES
        fetched = []
        for keys, needed in self.asked.others:
            first = last - len(keys) // KEY_BYTES
            names = split_keys(keys)
            seen = range(end - needed[end - last - 1], end)
            fetched.append([index for index in seen if names[index - first] != NO_KEY])
        return fetched


@dataclass(slots=True)
class StoredPrefix:
    """What is known of a request's stored pages. Only `StoredPages` and `PageSaver` write it."""

    lookup: StoreLookup | None = None  # None: the store was not asked
    fetch: Fetch | None = None  # None: the store has nothing, or nothing more is needed
    keys: bytes = b""  # page keys of the request's first full pages; later ones are not computed yet

    @property
    def end(self) -> int:
        """The page after the last one that is found or fetched; 0 without a fetch."""
        return self.fetch.end if self.fetch is not None else 0

    @property
    def awaits_answer(self) -> bool:
        return self.fetch is not None and self.fetch.unanswered
