"""Leases: cached prefixes that are evicted after everything else, or not at all, until their time ends."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import islice
from operator import attrgetter
from typing import TypeAlias

from .node import Checkpoint, Node
from .packed import TOKEN_BYTES
from .windows import KEPT, WindowPage

_break_order = attrgetter("break_order")
_Account: TypeAlias = tuple[bool, str]
"""whether breakable, and the owner"""


@dataclass(slots=True, eq=False)
class Lease:
    """Protects the pages from the root to the end of a node.

    A breakable lease locks nothing. If only leased pages are left to evict, it is broken. A lease that is
    not breakable, a pin, locks its nodes. `node` is None once the lease has ended or was broken.
    """

    owner: str  # its pages count towards this owner's quota
    ends_at: float  # seconds since 1970
    node: Node | None = field(repr=False)
    pages: list[int] = field(repr=False)  # page ids from the root to the end of `node`
    tokens: int  # number of tokens from the root to the end of `node`
    is_estimate: bool = False  # `ends_at` estimates when the pages will be used again, and was not promised
    is_breakable: bool = True
    is_broken: bool = False  # it ended early because only leased pages were left to evict
    windows: list[WindowPage] = field(default_factory=list, repr=False)  # of windowed groups, the last pages
    checkpoint: Checkpoint | None = field(default=None, repr=False)  # the deepest one, which a pin keeps

    @property
    def num_pages(self) -> int:
        return len(self.pages)

    @property
    def break_order(self) -> tuple[bool, float]:
        """Sort key of the order in which leases are broken: estimates come first, latest end first;
        then promised times, earliest end first."""
        return not self.is_estimate, -self.ends_at if self.is_estimate else self.ends_at


class Leases:
    """The leases of one cache. An owner's page counts once, even under several of its leases; pins and
    breakable leases are counted apart.

    Breaking a lease gains pages only where it ends at an unlocked leaf. The tree reports these leaves
    (`offer`, `withhold`), and `break_leaf` breaks all leases of one leaf.
    """

    def __init__(self) -> None:
        self.at: dict[Node, list[Lease]] = {}  # the leases that end at each node, sorted by `break_order`
        self._ended: list[Lease] = []  # leases that the cache ended since the last call of `take_ended`
        self._pages: dict[_Account, Counter[int]] = {}  # page id -> number of the account's leases on it
        self._owners: dict[bool, Counter[int]] = {True: Counter(), False: Counter()}
        """for breakable leases and for pins, page id -> number of owners that lease the page"""
        self._evictable: dict[Node, int] = {}  # leaf -> ticket of its valid entry in `_breaks`
        # Heaps with stale entries, which are skipped when they are popped:
        self._ends: list[tuple[float, int, Lease]] = []
        self._breaks: list[tuple[tuple[bool, float], int, Node]] = []
        self._tickets = 0
        self._num = 0

    def __len__(self) -> int:
        return self._num

    @property
    def num_pages(self) -> int:
        """Number of pages under breakable leases. A page that several owners lease counts once."""
        return len(self._owners[True])

    @property
    def num_pinned(self) -> int:
        """Number of pinned pages, each counted once."""
        return len(self._owners[False])

    def count_pinned(self, pages: Iterable[int]) -> int:
        """How many of the pages are pinned."""
        return sum(page in self._owners[False] for page in pages)

    @property
    def evictable(self) -> Set[Node]:
        """Leased leaves that no request locks. They are evicted only when no other leaf is left."""
        return self._evictable.keys()

    def count_pages(self, owner: str, *, is_breakable: bool = True) -> int:
        return len(self._pages.get((is_breakable, owner), ()))

    def owners(self) -> dict[str, int]:
        """Number of pages under breakable leases of each owner."""
        return {owner: len(pages) for (is_breakable, owner), pages in self._pages.items() if is_breakable}

    def __iter__(self) -> Iterator[Lease]:
        for leases in self.at.values():
            yield from leases

    def add(self, lease: Lease) -> None:
        assert lease.node is not None
        self._num += 1
        counts = self._pages.setdefault(_account(lease), Counter())
        before = len(counts)
        counts.update(lease.pages)
        added = islice(reversed(counts), len(counts) - before)  # dicts keep new keys at their end
        self._owners[lease.is_breakable].update(added)
        self._place(lease, lease.node)
        self._push_end(lease)

    def renew(self, lease: Lease, ends_at: float) -> None:
        """Sets another end time of the lease."""
        node = lease.node
        assert node is not None, "the lease has ended"
        self._displace(lease, node)
        lease.ends_at = ends_at
        self._place(lease, node)
        self._push_end(lease)

    def on_path(self, lease: Lease) -> list[Lease]:
        """The other leases whose tokens begin the lease's tokens, or are the same.

        They end at the lease's node, at its ancestors, or at tails that are siblings of those nodes.
        """
        assert lease.node is not None, "the lease has ended"
        nodes = [each for node in lease.node.path() for each in (node, *node.tails_beside())]
        return [each for node in nodes for each in self.at.get(node, ()) if each is not lease]

    def first_to_free(self, leases: Iterable[Lease]) -> list[Lease]:
        """Of all breakable leases of one owner, the first by `break_order` whose end reduces the owner's
        pages.

        Leases that end at the same node reduce the pages only together, so all of them are returned.
        """
        by_node: dict[Node, list[Lease]] = {}
        for lease in leases:
            if lease.node is not None:
                by_node.setdefault(lease.node, []).append(lease)
        outermost = [
            group
            for group in by_node.values()
            if self._pages[_account(group[0])][group[0].pages[-1]] == len(group)
        ]
        return min(outermost, key=lambda group: max(map(_break_order, group)))

    def remove(self, lease: Lease) -> Node:
        """Ends a lease; returns its node."""
        node = lease.node
        assert node is not None, "the lease has ended"
        self._num -= 1
        self._displace(lease, node)
        if node in self._evictable:
            self.offer(node) if node in self.at else self.withhold(node)
        self._uncount(lease, lease.pages)
        for page in lease.windows:
            if lease.is_breakable:
                page.group.count_lease(page, -1)
            else:
                page.group.end_use(page, KEPT)
        lease.node = None
        return node

    def first_to_end(self) -> Lease:
        """The lease with the earliest end. There must be a lease."""
        while True:
            ends_at, _, lease = self._ends[0]
            if lease.node is not None and ends_at == lease.ends_at:
                return lease
            heappop(self._ends)

    def offer(self, leaf: Node) -> None:
        """Makes an unlocked leaf evictable; evicting it will break its leases."""
        self._tickets += 1
        self._evictable[leaf] = self._tickets
        heappush(self._breaks, (self._find_order(leaf), self._tickets, leaf))
        if len(self._breaks) > 64 + 2 * len(self._evictable):
            self._breaks = [
                (self._find_order(leaf), ticket, leaf) for leaf, ticket in self._evictable.items()
            ]
            heapify(self._breaks)

    def withhold(self, leaf: Node) -> None:
        """Makes a leaf not evictable, because it is locked, extended or removed. No effect if it was not."""
        self._evictable.pop(leaf, None)

    def break_leaf(self) -> Node:
        """Breaks all leases of one evictable leaf, and returns it. There must be an evictable leaf.

        Leaves are compared by the last of their leases in `break_order`, and the first leaf is taken.
        """
        while True:
            _, ticket, leaf = heappop(self._breaks)
            if self._evictable.get(leaf) == ticket:
                break
        del self._evictable[leaf]
        for lease in list(self.at[leaf]):
            lease.is_broken = True
            self._ended.append(lease)
            self.remove(lease)
        return leaf

    def move_up(self, leaf: Node) -> None:
        """Moves the leases of a leaf that leaves the tree to its parent; at the root they end."""
        parent = leaf.parent
        assert parent is not None
        self.withhold(leaf)
        for lease in list(self.at.get(leaf, ())):
            if parent.parent is None:
                self.remove(lease)
                self._ended.append(lease)
                continue
            count = len(leaf.pages)
            self._displace(lease, leaf)
            self._uncount(lease, lease.pages[-count:])
            del lease.pages[-count:]
            lease.tokens -= len(leaf.tokens) // TOKEN_BYTES
            lease.node = parent
            self._place(lease, parent)

    def take_ended(self) -> list[Lease]:
        """Returns the leases that the cache broke or dropped since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _find_order(self, leaf: Node) -> tuple[bool, float]:
        return self.at[leaf][-1].break_order

    def _place(self, lease: Lease, node: Node) -> None:
        node.leases += 1
        insort(self.at.setdefault(node, []), lease, key=_break_order)
        if node in self._evictable:
            self.offer(node)

    def _displace(self, lease: Lease, node: Node) -> None:
        node.leases -= 1
        self.at[node].remove(lease)
        if not self.at[node]:
            del self.at[node]

    def _uncount(self, lease: Lease, pages: list[int]) -> None:
        counts, owners = self._pages[_account(lease)], self._owners[lease.is_breakable]
        for page in pages:
            counts[page] -= 1
            if not counts[page]:
                del counts[page]
                owners[page] -= 1
                if not owners[page]:
                    del owners[page]
        if not counts:
            del self._pages[_account(lease)]

    def _push_end(self, lease: Lease) -> None:
        self._tickets += 1
        heappush(self._ends, (lease.ends_at, self._tickets, lease))
        if len(self._ends) > 64 + 2 * self._num:
            self._ends = [(each.ends_at, ticket, each) for ticket, each in enumerate(self)]
            heapify(self._ends)


def _account(lease: Lease) -> _Account:
    return lease.is_breakable, lease.owner
