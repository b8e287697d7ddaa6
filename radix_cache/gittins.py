"""Evicts the leaf with the lowest Gittins index, learned for its kind and age."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import inf

from .node import Node
from .packed import TOKEN_BYTES
from .reuse_table import Kind, ReuseTable, Traits

# Ages and weights, in accessed tokens relative to the number of tokens that the whole cache holds:
BANDS = (0.125, 0.25, 0.5, 0.6875, 1, 1.375, 2, 2.8125, 4, 8, 16, 32)  # upper ends of all bands but the last
WEIGHT = 1 / 16  # observed tokens of a kind at which its evidence outweighs the prior
HALF_LIFE = 16  # accesses after which an observation's weight has halved
HISTORY = 32  # tokens that all ghosts together may have
TICKS = 16  # steps of a node's age while as many tokens are accessed as the cache holds
CYCLE = 1 / 2  # accesses in which every kind is updated once, if requests are frequent enough
# Tails (partial last pages):
TAIL_MEMORY = 32  # requests in the moving average of the reused share of a tail
RARE_SHARE = 0.25  # tails are evicted early while their reused share is below this
SPARED_TAILS = 16  # one in this many tails is not evicted early, so that its reuse is observed


class Group:
    """Nodes of one kind whose last use was in the same tick."""

    __slots__ = ("band", "kind", "leaves", "packed", "queued_rate", "tick")

    def __init__(self, kind: Kind, tick: int) -> None:
        self.kind = kind
        self.tick = tick
        self.band = 0
        self.packed = 0  # bytes of packed tokens in all its nodes
        self.leaves: OrderedDict[Node, None] = OrderedDict()  # evictable leaves by last use
        self.queued_rate = inf  # the group's index in its heap entry; inf: it has no entry


class TailQueue:
    """Leaves with a tail (a partial last page), which is evicted first while tails are rarely reused.

    It learns from requests that match all full pages of a leaf: each uses some share of its tail, or none.
    While tails are reused often, as in conversations, a tail is evicted with the pages before it. An evicted
    tail tells nothing more about reuse, so a few are always kept.
    """

    def __init__(self) -> None:
        self._share = 1.0  # reused share of a tail, a moving average over requests
        self.leaves: OrderedDict[Node, None] = OrderedDict()
        self._since_spared = 0

    def observe(self, share: float) -> None:
        self._share += (share - self._share) / TAIL_MEMORY

    def add(self, leaf: Node) -> None:
        if self._share < RARE_SHARE:
            self._since_spared = (self._since_spared + 1) % SPARED_TAILS
            if self._since_spared:
                self.leaves[leaf] = None

    def discard(self, leaf: Node) -> None:
        self.leaves.pop(leaf, None)

    def pop(self) -> Node | None:
        """Removes and returns the oldest leaf, for its tail to be evicted; None if tails are reused often."""
        if not self.leaves or self._share >= RARE_SHARE:
            return None
        return self.leaves.popitem(last=False)[0]


class GittinsPolicy:
    """Learns how soon nodes are reused from their hits, ancestry and length, and the request's output length.

    A node has an age, in accesses, from its last unlock until its next hit; meanwhile its group is
    `Node.mark`. Ghosts have ages too, because nodes that were evicted too early teach the most.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.history = HISTORY * num_pages
        capacity = max(num_pages * page_size, 1)
        widths = [capacity * (end - start) for start, end in pairwise((0.0, *BANDS))]
        self._table = ReuseTable(widths, capacity * WEIGHT * TOKEN_BYTES, capacity * HALF_LIFE)
        self._page_bytes = page_size * TOKEN_BYTES
        self._tails = TailQueue()
        self._tick_length = capacity / TICKS
        self._tick = 0
        self._cycle = capacity * CYCLE
        self._next_update = 0.0
        self._ends = [round(end * TICKS) for end in BANDS[:-1]]
        self._groups: list[dict[Traits, Group]] = [{} for _ in range(self._ends[-1] + 1)]  # index: the tick
        self._with_leaves: dict[Kind, dict[Group, None]] = {}
        self._heap: list[tuple[float, int, int, Group]] = []
        self._max_heap = 64
        self._ties = 0
        self._num_leaves = 0

    def __len__(self) -> int:
        return self._num_leaves

    def advance(self, now: int) -> None:
        self._table.advance(now)
        self._grow_older(now)
        if now >= self._next_update:
            self._update_kind(now)

    def _update_kind(self, now: int) -> None:
        kind = self._table.update_next()
        self._next_update = now + self._cycle / self._table.num_kinds
        for group in self._with_leaves.get(kind, ()) if kind else ():
            self._push(group)

    def hit(self, node: Node) -> None:
        group = node.mark
        if isinstance(group, Group):
            group.kind.used[group.band] += len(node.tokens) * self._table.scale
            self.forget(node)

    def rest(self, node: Node, generated: int) -> None:
        if node.mark is not None:
            return
        self._grow_older(node.last_use)
        group = self._youngest(_traits(node, generated))
        group.packed += len(node.tokens)
        group.kind.count_rested(len(node.tokens), self._table.scale)
        node.mark = group

    def forget(self, node: Node) -> None:
        group = node.mark
        if isinstance(group, Group):
            group.packed -= len(node.tokens)
            node.mark = None

    def shorten(self, node: Node, size: int) -> None:
        group = node.mark
        if isinstance(group, Group):
            group.packed -= size

    def add(self, leaf: Node) -> None:
        group = leaf.mark
        assert isinstance(group, Group) and leaf not in group.leaves, (
            "the leaf is in use, or in the queue already"
        )
        if not group.leaves:
            self._with_leaves.setdefault(group.kind, {})[group] = None
        group.leaves[leaf] = None
        self._num_leaves += 1
        if len(leaf.tokens) % self._page_bytes:
            self._tails.add(leaf)
        self._push(group)

    def discard(self, leaf: Node) -> None:
        group = leaf.mark
        if isinstance(group, Group) and leaf in group.leaves:
            del group.leaves[leaf]
            self._lost_leaf(group)
            self._tails.discard(leaf)

    def observe_tail(self, share: float) -> None:
        self._tails.observe(share)

    def pop_tail(self) -> Node | None:
        return self._tails.pop()

    def pop(self) -> Node:
        while True:
            rate, _, _, group = self._heap[0]
            valid = rate == group.queued_rate
            if valid and group.leaves and group.kind.rates[group.band] <= rate:
                leaf, _ = group.leaves.popitem(last=False)
                if self._tails.leaves:
                    self._tails.discard(leaf)
                self._num_leaves -= 1
                if not group.leaves:
                    del self._with_leaves[group.kind][group]
                return leaf
            heappop(self._heap)
            if valid:
                group.queued_rate = inf
                if group.leaves:
                    self._push(group)

    def add_and_pop(self, leaf: Node) -> Node:
        group = leaf.mark
        assert isinstance(group, Group), "the leaf is in use"
        if self._heap:
            rate, tick, _, _ = self._heap[0]
            own_rate = group.kind.rates[group.band]
            if rate < own_rate or (rate == own_rate and tick <= group.tick):
                self.add(leaf)
                return self.pop()
        return leaf

    def _lost_leaf(self, group: Group) -> None:
        self._num_leaves -= 1
        if not group.leaves:
            del self._with_leaves[group.kind][group]

    def _youngest(self, traits: Traits) -> Group:
        groups = self._groups[self._tick % len(self._groups)]
        group = groups.get(traits)
        if group is None:
            group = groups[traits] = Group(self._table.kind(traits), self._tick)
        return group

    def _grow_older(self, now: int) -> None:
        tick = int(now / self._tick_length)
        while self._tick < tick:
            self._tick += 1
            self._groups[self._tick % len(self._groups)] = {}
            for band, end in enumerate(self._ends, 1):
                self._enter(band, self._groups[(self._tick - end) % len(self._groups)].values())

    def _enter(self, band: int, groups: Iterable[Group]) -> None:
        for group in groups:
            if not group.packed:
                continue
            group.band = band
            group.kind.seen[band] += group.packed * self._table.scale
            if group.leaves:
                self._push(group)

    def _push(self, group: Group) -> None:
        """Adds a group to the heap by its index. An index that has risen is corrected when it is popped."""
        rate = group.kind.rates[group.band]
        if rate >= group.queued_rate:
            return
        group.queued_rate = rate
        self._ties += 1
        heappush(self._heap, (rate, group.tick, self._ties, group))
        if len(self._heap) > self._max_heap:
            self._drop_stale_entries()

    def _drop_stale_entries(self) -> None:
        valid = [entry for entry in self._heap if entry[0] == entry[3].queued_rate]
        self._heap = [entry for entry in valid if entry[3].leaves]
        for _, _, _, group in valid:
            if not group.leaves:
                group.queued_rate = inf
        heapify(self._heap)
        self._max_heap = 64 + 2 * len(self._heap)


def _traits(node: Node, generated: int) -> Traits:
    """The node's traits on logarithmic scales: a step doubles the hits, or multiplies a length by eight."""
    hits = min(node.hits.bit_length(), 4)
    ancestry = -1 if hits else _ancestry(node)
    return Traits(hits, ancestry, len(node.tokens).bit_length() // 3, generated.bit_length() // 3)


def _ancestry(node: Node) -> int:
    """Classifies the parent of a node without hits. -1: the root; 0, 1: a parent with 0 or 1 hits.

    2 to 6: a parent with more hits, by the share of its hits that also matched a child or ghost.
    """
    parent = node.parent
    assert parent is not None
    if parent.parent is None:
        return -1
    if parent.hits < 2:
        return parent.hits
    return 2 + round(4 * parent.extended / parent.hits)
