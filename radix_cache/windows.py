"""Pages of layers that see only the latest tokens: which of them a match needs, and which are evicted.

All full pages of a cached sequence are in the tree, but only some of its windowed ones. A windowed page is
allocated while a request, a pin or the tree has it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from .page_allocator import PageAllocator

MARGIN = 64
"""number of tokens kept behind a window, so that a match may also end a few tokens earlier; fewer in short
windows, but always enough for one that ends at the last full page"""
CHUNK = 256
"""tokens of a prompt for which a step has pages, however many requests share them; fewer in short windows"""
BEHIND, KEPT, LEASED = range(3)
"""ranks of pages that nobody uses, in the order of eviction: far behind the ends that a later match may have,
within reach of such an end, and under a lease"""


class Reach(NamedTuple):
    """How far back a token sees."""

    tokens: int
    in_chunks: bool = False
    """whether a token sees the tokens since the last multiple of `tokens`, in place of the last `tokens`"""

    def find_first(self, position: int) -> int:
        """The first position that the token at `position` sees."""
        if self.in_chunks:
            return position - position % self.tokens
        return max(0, position - self.tokens + 1)


class WindowPage:
    """A page of a windowed group. Tree, locks and leases share the object, so that eviction reaches all."""

    __slots__ = ("group", "id", "is_cached", "leases", "name", "rank", "users")

    def __init__(self, group: WindowGroup, page: int) -> None:
        self.group = group
        self.id = page  # -1: the page is lost
        self.users = 0  # requests, copies and pins that need its contents
        self.leases = 0  # breakable leases on the page
        self.is_cached = False  # whether a node of the tree has it
        self.rank = BEHIND
        self.name: tuple[str, bytes] | None = None
        """namespace and key (page_keys.py) of a full page that a node has; None without a page store"""

    @property
    def is_worth_storing(self) -> bool:
        """Whether a later match may need the page, so that a page store should keep it."""
        return self.id >= 0 and self.name is not None and self.rank > BEHIND


class WindowGroup:
    """The pages of the layers with one reach."""

    def __init__(self, reach: Reach, num_pages: int, page_size: int, number: int = 1) -> None:
        """number: of the group; number 0 has the layers that see all tokens"""
        self.reach, self.num_pages, self.page_size, self.number = reach, num_pages, page_size, number
        self.on_evict: Callable[[WindowPage], None] | None = None
        """called with each page that is evicted without its node, before its contents may change"""
        self.allocator = PageAllocator(num_pages)
        self.num_evicted = 0
        self._margin = max(page_size - 1, min(MARGIN, reach.tokens // 8))
        self._chunk = min(CHUNK, reach.tokens)
        self._idle: list[OrderedDict[WindowPage, None]] = [OrderedDict() for _ in (BEHIND, KEPT, LEASED)]

    @property
    def available(self) -> int:
        """Number of pages that requests can get: free ones and cached ones that nobody uses."""
        return self.allocator.num_free + sum(map(len, self._idle))

    def count_unused(self) -> tuple[int, int]:
        """Number of free pages, and of cached pages that nobody uses."""
        return self.allocator.num_free, self.available - self.allocator.num_free

    @property
    def idle(self) -> list[WindowPage]:
        """The cached pages that nobody uses, in the order of their eviction."""
        return [page for pages in self._idle for page in pages]

    def find_first(self, position: int) -> int:
        """The index of the first page that the token at `position` sees."""
        return self.reach.find_first(position) // self.page_size

    def find_first_kept(self, position: int) -> int:
        """As `find_first`, with the margin."""
        return self.find_first(max(0, position - self._margin))

    def max_held(self, tokens: int) -> int:
        """How many pages a request of `tokens` tokens may need at once, if its prompt is computed in small
        chunks: of two steps, because a page is freed when the last step that reads it is done."""
        held = self.reach.tokens + self._margin + 2 * self._chunk
        return min(-(-tokens // self.page_size), held // self.page_size + 2)

    def take(self, count: int, after: WindowPage | None) -> list[WindowPage]:
        """Allocates `count` of the available pages, evicts as many as needed, and counts a use of each."""
        lacking = count - self.allocator.num_free
        if lacking > 0:
            self._evict(lacking)
        pages = []
        for page in self.allocator.take(count, after.id if after is not None and after.id >= 0 else None):
            pages.append(taken := WindowPage(self, page))
            taken.users = 1
        return pages

    def use(self, page: WindowPage) -> None:
        assert page.id >= 0, "the page is lost"
        if not page.users:
            del self._idle[_find_queue(page)][page]
        page.users += 1

    def end_use(self, page: WindowPage, rank: int) -> None:
        page.users -= 1
        page.rank = max(page.rank, rank)
        if not page.users:
            self._rest(page)

    def enter(self, page: WindowPage) -> None:
        """Notes that a node has the page, which a request uses."""
        assert page.users and not page.is_cached
        page.is_cached = True

    def leave(self, page: WindowPage) -> None:
        """Notes that its node has lost the page."""
        if page.is_cached:
            if not page.users:
                del self._idle[_find_queue(page)][page]
            page.is_cached = False
            if not page.users:
                self._rest(page)

    def count_lease(self, page: WindowPage, change: int) -> None:
        """Adds or removes a breakable lease on the page."""
        is_idle = page.is_cached and not page.users
        if is_idle:
            del self._idle[_find_queue(page)][page]
        page.leases += change
        page.rank = max(page.rank, KEPT)
        if is_idle:
            self._rest(page)

    def _rest(self, page: WindowPage) -> None:
        if page.is_cached:
            self._idle[_find_queue(page)][page] = None
        elif page.id >= 0:
            self.allocator.free([page.id])
            page.id = -1

    def _evict(self, count: int) -> None:
        assert count <= self.available - self.allocator.num_free, "asked to evict too many windowed pages"
        self.num_evicted += count
        evicted: list[int] = []
        for queue in self._idle:
            while queue and len(evicted) < count:
                page, _ = queue.popitem(last=False)
                if self.on_evict is not None:
                    self.on_evict(page)
                evicted.append(page.id)
                page.id, page.is_cached = -1, False
        self.allocator.free(evicted)


def _find_queue(page: WindowPage) -> int:
    return LEASED if page.leases else page.rank


WindowPages = list[WindowPage | None]
"""the pages of a run of tokens, by their order. None, or a page that is lost: later matches can't use it"""


def is_there(page: WindowPage | None) -> bool:
    return page is not None and page.id >= 0


@dataclass(slots=True, eq=False)
class WindowTable:
    """A request's pages of one windowed group."""

    group: WindowGroup
    pages: WindowPages  # by position // page size; None: the request does not need the page any more
    first: int  # index of the first page that the request uses
    source: WindowPage | None = None  # the page to copy into the table's page after the full ones
    prompt_tokens: int = 0
    marks: list[int] = field(default_factory=list)  # ends of a prefix that later requests may share
    lacking: list[int] = field(default_factory=list)  # indices of pages that a step must restore first

    def count_claimed(self, shared: Collection[WindowPage] = ()) -> int:
        """How many more pages the request needs at most for its prompt, which others must leave to it.

        Pages that it shares with others, or will with `shared`, do not count as its own: it does not free
        them when they are behind its window.
        """
        left = -(-self.prompt_tokens // self.group.page_size) - len(self.pages)
        if left <= 0:
            return 0
        used = (page for page in self.pages[self.first :] if page is not None)
        alone = sum(page.users == 1 and page not in shared for page in used)
        return min(left, max(0, self.group.max_held(self.prompt_tokens) - alone))

    def extend(self, count: int) -> None:
        self.pages += self.group.take(count, self.pages[-1] if self.pages else None)

    def release(self, end: int, keep_from: int | None = None) -> None:
        """Ends the use of pages before `end` (an index). `keep_from`: index of the first page that is kept
        for matches of the request's end.

        The last page is evicted first, because a match that is shorter by a page needs the pages before.
        """
        for index in range(min(end, len(self.pages)) - 1, self.first - 1, -1):
            page, self.pages[index] = self.pages[index], None
            if page is not None:
                is_kept = (keep_from is not None and index >= keep_from) or self._is_near_mark(index)
                self.group.end_use(page, KEPT if is_kept else BEHIND)
        self.first = max(self.first, end)

    def _is_near_mark(self, index: int) -> bool:
        size = self.group.page_size
        return any(self.group.find_first_kept(mark) <= index < -(-mark // size) for mark in self.marks)

    def list_cacheable(self, start: int, end: int) -> WindowPages:
        """The pages [start, end) for the tree, without those whose contents are still to be restored."""
        pages = enumerate(self.pages[start:end], start)
        return [None if index in self.lacking else page for index, page in pages]

    def list_ids(self, start: int = 0) -> list[int]:
        """Page ids from index `start` on; 0 for pages that the request does not need."""
        return [page.id if page is not None else 0 for page in self.pages[start:]]
