"""Scheduler ↔ page store, a thread of the model process that keeps pages and states in the slower tiers.

A fetch takes two requests: `FindPages` when a prompt is queued (answer: `PagesFound`), then `FetchPages` to
copy the found pages to host memory (answer: `PagesFetched`). A step plan restores them. Keys have 16 bytes.

The state that recurrent layers have at the end of a page is divided into pieces as large as a page, and each
piece counts as a page. A prompt of such a model starts at a state, so a fetch has the pages before the state
and then its pieces.
"""

from __future__ import annotations

from .base import Message, Part, StoreCounts, Tokens
from .cache_control import CacheDropped, PagesInTiers


class SavedPages(Part):
    """Pages whose contents the page store saves under their keys."""

    namespace: str
    keys: bytes
    pages: bytes  # page ids, int32
    group: int = 0  # number of their group of layers
    is_sent: bool = False  # another server waits for them: they are copied even if a lower tier has them


class RestoredPages(Part):
    """Pages to fill from a fetch. The row that reads them may come in a later step."""

    fetch: int
    first: int  # index of the first of `pages` among the fetch's pages of their group
    pages: bytes  # page ids, int32
    group: int = 0


class SavedState(Part):
    """A state that the page store saves under a key."""

    namespace: str
    key: bytes
    place: int


class RestoredState(Part):
    """The place to fill with the state of a fetch."""

    fetch: int
    place: int


# scheduler → model, sent in order with the model's steps


class SavePages(Message):
    """Save pages and states outside a step. Earlier steps compute their contents."""

    saves: list[SavedPages]
    states: list[SavedState] = []


class ForgetPages(Message):
    """Erase the pages of `namespace`, or of all namespaces whose names begin with `scope`."""

    scope: str
    namespace: str | None
    client: int
    dropped: CacheDropped  # answer to `client`; returns in `PagesForgotten` with the store's numbers


class DiscardPages(Message):
    """The contents under these keys may be wrong and must not be served."""

    namespace: str
    keys: bytes  # page keys
    others: list[bytes] = []  # keys of states, or of the pages of each windowed group


class FlushPages(Message):
    """Save these, make all saved pages and states outlive the process, then answer `PagesFlushed`."""

    saves: list[SavedPages]  # pages to save, most recently used first
    fetches_over: list[int] = []  # fetches that the store may drop, as in `StepPlan`
    states: list[SavedState] = []  # states to save, in the same order


# scheduler → page store


class NeededEntries(Part):
    """What a windowed group or recurrent layers need to go on at the end of a page, beside all pages before
    it: the group's last pages, or the state."""

    keys: bytes
    """a key for each of some consecutive pages, the last one that of `FindPages.keys`; zeros: it is in the KV
    cache"""
    needed: bytes  # int32: at each possible end, how many entries before it are needed; the last end last


class FindPages(Message):
    """Asks the store to count a queued prompt's pages from the first one up to one that it lacks.

    If the model has recurrent layers or windowed groups, asks for the last possible end at which the others
    are stored too. It may be before the first page, if all pages before it are in the KV cache.
    """

    fetch: int
    namespace: str
    keys: bytes
    others: list[NeededEntries] = []  # each with the same ends
    prompt: Tokens = b""
    """the prompt up to the last of `keys`, if a prefill server may compute what is not stored"""
    first: int = 0  # with `prompt`, index of the first of `keys` in it


class FetchPages(Message):
    """Copy the found pages to host memory."""

    fetch: int


class EndFetch(Message):
    """Ends a fetch of which no step restores pages any more."""

    fetch: int


class UsedPages(Message):
    """Reports that a request used these on the device. Their stored copies then count as used too."""

    keys: bytes  # page keys of a prefix of prompt and reply
    others: list[bytes] = []  # keys of the states, of which few are stored, or of windowed groups' pages


class LocatePages(Message):
    """Asks in which tiers pages are. Each group has the pages of one node."""

    question: int
    groups: list[bytes]  # concatenated page keys of each node


# page store → scheduler


class PagesFound(Message):
    """Tells that the first `pages` of the asked pages are stored. With 0 pages the fetch is over."""

    fetch: int
    pages: int  # with the places that the others take
    end: int | None = None
    """with `FindPages.others`, number of pages from the first of `FindPages.keys` to the found end; negative
    if it is before that page"""


class PagesFetched(Message):
    """The first `pages` of the fetch are ready until `StepPlan.fetches_over` or `EndFetch` names it. Answers
    each `FetchPages` once, with 0 pages if `EndFetch` came first."""

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
    """All pages that could be saved are saved."""
