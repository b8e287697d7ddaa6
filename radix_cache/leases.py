"""Leases: cached prefixes that are evicted after everything else until their time ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from .node import Node


@dataclass(slots=True, eq=False)
class Lease:
    """Protects the pages from the root to the end of a node.

    A lease locks nothing: if only leased pages are left to evict, a lease is broken. `node` is None once it
    has ended or was broken.
    """

    owner: str  # its pages count towards this owner's quota
    ends_at: float  # in seconds since 1970
    node: Node | None = field(repr=False)
    pages: list[int] = field(repr=False)  # from the root to the end of `node`
    tokens: int  # from the root to the end of `node`
    is_estimate: bool = False  # the end says when the pages are likely to be used again
    is_broken: bool = False  # it ended early because only leased pages were left to evict

    @property
    def break_order(self) -> tuple[bool, float]:
        """Sort key of the order in which leases are broken: first estimates, the latest use first; then
        promised times, the first to end first."""
        return not self.is_estimate, -self.ends_at if self.is_estimate else self.ends_at


class Leases:
    """The leases of one cache. An owner's page counts once, even under several of its leases."""

    def __init__(self) -> None:
        self.at: dict[Node, list[Lease]] = {}
        self._ended: list[Lease] = []  # by the cache itself, since the last call of `take_ended`
        self._pages: dict[str, Counter[int]] = {}  # by owner: page id -> leases that protect it
        # Heaps, in which some entries are stale:
        self._ends: list[tuple[float, int, Lease]] = []
        self._breaks: list[tuple[tuple[bool, float], int, Lease]] = []
        self._tickets = 0
        self._num = 0

    def __len__(self) -> int:
        return self._num

    @property
    def num_pages(self) -> int:
        """Leased pages; a page that several owners lease counts once."""
        return len(set().union(*self._pages.values()))

    def pages_of(self, owner: str) -> int:
        return len(self._pages.get(owner, ()))

    def owners(self) -> dict[str, int]:
        """Leased pages by owner."""
        return {owner: len(pages) for owner, pages in self._pages.items()}

    def __iter__(self) -> Iterator[Lease]:
        for leases in self.at.values():
            yield from leases

    def add(self, lease: Lease) -> None:
        assert lease.node is not None
        self._num += 1
        self._pages.setdefault(lease.owner, Counter()).update(lease.pages)
        self._place(lease, lease.node)
        self._push(lease)

    def renew(self, lease: Lease, ends_at: float) -> None:
        """Gives the lease another end."""
        lease.ends_at = ends_at
        self._push(lease)

    def on_path(self, lease: Lease) -> list[Lease]:
        """The other leases that end at the lease's node or at its ancestors."""
        assert lease.node is not None, "the lease has ended"
        return [each for node in lease.node.path() for each in self.at.get(node, ()) if each is not lease]

    def remove(self, lease: Lease) -> Node:
        """Ends a lease; returns its node."""
        node = lease.node
        assert node is not None, "the lease has ended"
        self._num -= 1
        self._displace(lease, node)
        self._uncount(lease, lease.pages)
        lease.node = None
        return node

    def first_to_end(self) -> Lease:
        """The lease that ends first; there must be one."""
        while True:
            ends_at, _, lease = self._ends[0]
            if lease.node is not None and ends_at == lease.ends_at:
                return lease
            heappop(self._ends)

    def break_one(self) -> Node:
        """Breaks the first lease by `break_order`; returns its node. There must be one."""
        while True:
            order, _, lease = heappop(self._breaks)
            if lease.node is not None and order == lease.break_order:
                break
        lease.is_broken = True
        self._ended.append(lease)
        return self.remove(lease)

    def move_up(self, leaf: Node) -> None:
        """The leaf leaves the tree: its leases end at its parent, and those at the root are over."""
        parent = leaf.parent
        assert parent is not None
        for lease in list(self.at.get(leaf, ())):
            if parent.parent is None:
                self.remove(lease)
                self._ended.append(lease)
                continue
            count = len(leaf.pages)
            self._displace(lease, leaf)
            self._uncount(lease, lease.pages[-count:])
            del lease.pages[-count:]
            lease.tokens -= len(leaf.tokens) // 4
            lease.node = parent
            self._place(lease, parent)

    def take_ended(self) -> list[Lease]:
        """The leases that the cache broke or dropped since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def _place(self, lease: Lease, node: Node) -> None:
        node.leases += 1
        self.at.setdefault(node, []).append(lease)

    def _displace(self, lease: Lease, node: Node) -> None:
        node.leases -= 1
        self.at[node].remove(lease)
        if not self.at[node]:
            del self.at[node]

    def _uncount(self, lease: Lease, pages: list[int]) -> None:
        counts = self._pages[lease.owner]
        for page in pages:
            counts[page] -= 1
            if not counts[page]:
                del counts[page]
        if not counts:
            del self._pages[lease.owner]

    def _push(self, lease: Lease) -> None:
        if len(self._ends) > 64 + 2 * self._num or len(self._breaks) > 64 + 2 * self._num:
            self._tickets, leases = self._num, list(self)
            self._ends = [(each.ends_at, ticket, each) for ticket, each in enumerate(leases)]
            self._breaks = [(each.break_order, ticket, each) for ticket, each in enumerate(leases)]
            heapify(self._ends)
            heapify(self._breaks)
        self._tickets += 1
        heappush(self._ends, (lease.ends_at, self._tickets, lease))
        heappush(self._breaks, (lease.break_order, self._tickets, lease))
