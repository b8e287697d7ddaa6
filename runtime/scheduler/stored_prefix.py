"""The part of one request's tokens that the page store is known to have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import takewhile


@dataclass(slots=True)
class Fetch:
    """A request to the page store for the full pages of a prompt that begin with page `first`, and for the
    recurrent layers' state after a page."""

    id: int
    first: int
    found: int | None = None  # stored pages and pieces of the state; None until `PagesFound` arrives
    state_end: int | None = None  # index of the page after the found state; None: there is none
    pages: int | None = None  # pages and pieces ready to be restored; None until `PagesFetched` arrives
    requested: bool = False  # whether `FetchPages` was sent
    restored: bool = False  # whether a step in flight or done restores some of the pages

    @property
    def unanswered(self) -> bool:
        return self.pages is None if self.requested else self.found is None

    @property
    def size(self) -> int:
        """The number of pages and pieces that were fetched; before that, of those that were found, or 0."""
        return (self.found or 0) if self.pages is None else self.pages

    @property
    def end(self) -> int:
        """The index of the page after the last one that a request can use."""
        return self.first + self.size if self.state_end is None else self.state_end


@dataclass(slots=True)
class StoreLookup:
    """The part of a request's tokens that was in the tree when the page store was asked for the rest."""

    first: int  # number of full pages in the tree
    start: int  # with recurrent layers, number of tokens before the last checkpoint in the tree; otherwise 0
    missing: list[bytes]  # keys of the other full pages, then of states; empty once the store has answered
    in_copy: Collection[bytes]  # keys among `missing` of what was still being copied to the store
    attempt: int  # number of the look-up since the request was queued, from 1

    def answer(self, found: int) -> None:
        """Notes that the first `found` missing pages are stored. Keeps only later pages in `in_copy`."""
        self.in_copy = list(takewhile(self.in_copy.__contains__, self.missing[found:]))
        self.missing = []

    def answer_state(self, is_found: bool) -> None:
        """Notes whether a state and all pages before it are stored. If not, they may be soon."""
        self.in_copy = [] if is_found else list(filter(self.in_copy.__contains__, self.missing))
        self.missing = []


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
