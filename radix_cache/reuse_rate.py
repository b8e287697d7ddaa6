"""Evicts what is worth least: the leaf whose kind, at its age, brings the fewest hits for its time."""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import inf

from .node import Node
from .packed import TOKEN_BYTES
from .reuse import Kind, ReuseTable, Traits

# All in tokens, relative to the whole cache:
BANDS = (1 / 16, 1 / 8, 1 / 4, 0.35, 0.5, 0.7, 1, 1.4, 2, 2.8, 4, 8, 16)  # ends; what is older is in the last
WEIGHT = 1 / 16  # seen, before that counts for more than what was assumed
HALF_LIFE = 8  # of what was learned
HISTORY = 16  # evicted, and remembered


class Cell:
    """Nodes of one kind and one band of age, the oldest first."""

    __slots__ = ("band", "due", "kind", "leaves", "nodes", "offered", "older")

    def __init__(self, kind: Kind, band: int, older: Cell | None) -> None:
        self.kind = kind
        self.band = band
        self.older = older  # the cell of the next band
        self.nodes: OrderedDict[Node, None] = OrderedDict()
        self.leaves: OrderedDict[Node, None] = OrderedDict()  # those that may be evicted
        self.offered = inf  # the rate at which its leaves wait for eviction, if they do
        self.due = False  # whether it waits for its oldest node to reach the end of the band


class ReuseRate:
    """Learns how soon nodes are used again, by their hits, their parent's, their length and the answer's.

    A node has an age from when its last lock goes, counted in accesses, until it is hit; while it has one,
    its cell is `Node.mark`. That goes for remembered nodes too: what was evicted too early teaches most.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.history = HISTORY * num_pages
        capacity = max(num_pages * page_size, 1)
        ends = [capacity * end for end in BANDS]
        widths = [end - start for start, end in pairwise([0.0, *ends])]
        self._ends = [*ends[:-1], inf]
        self._table = ReuseTable(widths, capacity * WEIGHT * TOKEN_BYTES, capacity * HALF_LIFE)
        self._cells: dict[Traits, list[Cell]] = {}  # the oldest first
        self._due: list[tuple[float, int, Cell]] = []
        self._offers: list[tuple[float, int, Cell]] = []
        self._ties = 0
        self._num_leaves = 0
        self._now = 0
        self._look_again = 0.0  # when to see what is due

    def __len__(self) -> int:
        return self._num_leaves

    def advance(self, now: int) -> None:
        self._now = now
        self._table.advance(now)
        if now >= self._look_again:
            self._look_again = now + self._ends[0]
            self._grow_older()
        kind = self._table.learn()
        if kind is not None:
            for cell in self._cells[kind.traits]:
                if cell.leaves:
                    self._offer(cell)

    def hit(self, node: Node) -> None:
        cell = node.mark
        if isinstance(cell, Cell):
            cell.kind.used[cell.band] += len(node.tokens) * self._table.scale
            self.forget(node)

    def rest(self, node: Node, generated: int) -> None:
        cell = node.mark
        if isinstance(cell, Cell):
            cell.nodes.move_to_end(node)
            return
        cell = self._youngest(_traits(node, generated))
        node.mark = cell
        cell.nodes[node] = None
        self._arrived(cell, len(node.tokens))

    def split(self, upper: Node, lower: Node) -> None:
        cell = lower.mark
        if isinstance(cell, Cell):
            upper.mark = cell
            cell.nodes[upper] = None

    def forget(self, node: Node) -> None:
        cell = node.mark
        if isinstance(cell, Cell):
            del cell.nodes[node]
            node.mark = None

    def add(self, leaf: Node) -> None:
        cell = leaf.mark
        assert isinstance(cell, Cell) and leaf not in cell.leaves, (
            "the leaf is in use, or in the queue already"
        )
        cell.leaves[leaf] = None
        self._num_leaves += 1
        self._offer(cell)

    def discard(self, leaf: Node) -> None:
        cell = leaf.mark
        if isinstance(cell, Cell) and leaf in cell.leaves:
            del cell.leaves[leaf]
            self._num_leaves -= 1

    def pop(self) -> Node:
        while True:
            rate, _, cell = self._offers[0]
            if cell.leaves and rate == cell.offered == cell.kind.rates[cell.band]:
                self._num_leaves -= 1
                return cell.leaves.popitem(last=False)[0]
            heappop(self._offers)
            if rate == cell.offered:
                cell.offered = inf
                if cell.leaves:
                    self._offer(cell)

    def _youngest(self, traits: Traits) -> Cell:
        cells = self._cells.get(traits)
        if cells is None:
            cells = self._cells[traits] = []
            kind = self._table.kind(traits)
            for band in reversed(range(len(BANDS))):
                cells.append(Cell(kind, band, cells[-1] if cells else None))
        return cells[-1]

    def _arrived(self, cell: Cell, packed: int) -> None:
        cell.kind.seen[cell.band] += packed * self._table.scale
        if not cell.due:
            self._schedule(cell)

    def _schedule(self, cell: Cell) -> None:
        cell.due = True
        self._ties += 1
        oldest = next(iter(cell.nodes))
        heappush(self._due, (oldest.last_use + self._ends[cell.band], self._ties, cell))

    def _grow_older(self) -> None:
        """Moves on what has reached the end of its band."""
        while self._due and self._due[0][0] <= self._now:
            cell = heappop(self._due)[2]
            cell.due = False
            if cell.older is not None:
                self._move_on(cell, cell.older)
            if cell.nodes:
                self._schedule(cell)

    def _move_on(self, cell: Cell, older: Cell) -> None:
        latest = self._now - self._ends[cell.band]
        moved = 0
        while cell.nodes and (node := next(iter(cell.nodes))).last_use <= latest:
            del cell.nodes[node]
            older.nodes[node] = None
            node.mark = older
            moved += len(node.tokens)
            if node in cell.leaves:
                del cell.leaves[node]
                older.leaves[node] = None
        if moved:
            self._arrived(older, moved)
            self._offer(older)

    def _offer(self, cell: Cell) -> None:
        rate = cell.kind.rates[cell.band]
        if rate == cell.offered:
            return
        cell.offered = rate
        self._ties += 1
        heappush(self._offers, (rate, self._ties, cell))
        if len(self._offers) > 64 + 4 * len(BANDS) * len(self._cells):
            self._offers = [offer for offer in self._offers if offer[0] == offer[2].offered]
            heapify(self._offers)


def _traits(node: Node, generated: int) -> Traits:
    """Scales on which a step is a doubling (hits) or a quadrupling (lengths).

    The parent tells a new conversation from the next turn of one, as long as the node has no past of its own.
    """
    assert node.parent is not None
    hits = min(node.hits.bit_length(), 4)
    parent = -1
    if not hits and node.parent.parent is not None:
        parent = min(node.parent.hits, 2)
    return Traits(hits, parent, len(node.tokens).bit_length() // 2, generated.bit_length() // 2)
