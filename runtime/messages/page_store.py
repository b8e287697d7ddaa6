"""Scheduler ↔ page store, a thread of the model process that keeps pages in the slower tiers.

A fetch takes two requests: `FindPages` when a prompt is queued (answer: `PagesFound`), then `FetchPages` to
copy the found pages to host memory (answer: `PagesFetched`). A step plan restores them. Page keys have 16
bytes.
"""

from __future__ import annotations

from .base import Message, Part, StoreCounts
from .cache_control import CacheDropped, PagesInTiers


class SavedPages(Part):
    """Pages whose contents the page store saves under their keys."""

    namespace: str
    keys: bytes
    pages: bytes  # int32


class RestoredPages(Part):
    """Pages to fill from a fetch. The row that reads them may come in a later step."""

    fetch: int
    first: int  # the fetch's page for the first of `pages`
    pages: bytes  # int32


# scheduler → model, in order with its steps


class SavePages(Message):
    """Save these pages too; earlier steps compute their contents."""

    saves: list[SavedPages]


class ForgetPages(Message):
    """Erase the pages of `namespace`, or of all namespaces whose names begin with `scope`."""

    scope: str
    namespace: str | None
    client: int
    dropped: CacheDropped  # the answer to `client`; comes back in `PagesForgotten` with the store's numbers


class DiscardPages(Message):
    """The pages under these keys may be wrong and must not be served."""

    namespace: str
    keys: bytes


class FlushPages(Message):
    """Save these pages too, make all saved pages outlive the process, then answer `PagesFlushed`."""

    saves: list[SavedPages]  # most recently used first
    fetches_over: list[int] = []  # see `StepPlan`


# scheduler → page store


class FindPages(Message):
    """A prompt is queued: how many of these pages, from the first on, are stored?"""

    fetch: int
    namespace: str
    keys: bytes


class FetchPages(Message):
    """Copy the found pages to host memory."""

    fetch: int


class EndFetch(Message):
    """The fetch is not needed any more, and no step restores any of it."""

    fetch: int


class UsedPages(Message):
    """A request used these pages on the device: stored ones count as used, too."""

    keys: bytes  # a prefix of prompt and reply


class LocatePages(Message):
    """Asks in which tiers pages are. Each group has the pages of one node."""

    question: int
    groups: list[bytes]  # keys


# page store → scheduler


class PagesFound(Message):
    """The first `pages` are stored. With 0 pages the fetch is over."""

    fetch: int
    pages: int


class PagesFetched(Message):
    """The first `pages` are ready, until a step's `fetches_over` names the fetch, or `EndFetch`."""

    fetch: int
    pages: int


class PagesLocated(Message):
    question: int
    groups: list[PagesInTiers]


class PagesForgotten(Message):
    """The pages are erased, also on disk."""

    client: int
    dropped: CacheDropped


class StoreReport(Message):
    counts: StoreCounts


class PagesFlushed(Message):
    """All pages that could be saved are."""
