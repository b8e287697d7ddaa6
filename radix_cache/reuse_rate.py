"""Evicts what is worth least: the leaf whose kind, at its age, brings the fewest hits for the time it waits."""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from itertools import pairwise

from .node import Node
from .packed import TOKEN_BYTES
from .reuse import Kind, ReuseTable, Traits

BANDS = 20  # of age, each longer by half an octave than the one before
# Relative to what the cache holds:
FIRST_BAND = 1 / 32
WEIGHT = 1 / 32
HALF_LIFE = 8
HISTORY = 16


class Cell:
    """Nodes of one kind that nobody uses, out of use for as long as one band says, the longest first."""

    __slots__ = ("band", "due", "kind", "leaves", "nodes", "offered", "older", "rate")

    def __init__(self, kind: Kind, band: int, older: Cell | None) -> None:
        self.kind = kind
        self.band = band
        self.older = older
        self.nodes: OrderedDict[Node, None] = OrderedDict()
        self.leaves: OrderedDict[Node, None] = OrderedDict()  # those of `nodes` that may be evicted
        self.rate = kind.rates[band]
        self.offered = False  # whether it waits for eviction at this rate
        self.due = False  # whether it waits for its first node to grow older


class ReuseRate:
    """Learns from counting how soon nodes are used again, by hits, parent, length and what was answered.

    A node's age is counted from when its last lock went, in accesses. What has an age has a cell (`Node.mark`); a node
    in use has none if it was used since.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.history = HISTORY * num_pages
        capacity = max(num_pages * page_size, 1)
        bounds = [0.0, *(capacity * FIRST_BAND * 2 ** (band / 2) for band in range(BANDS))]
        self._ends = bounds[1:]
        widths = [end - start for start, end in pairwise(bounds)]
        self._table = ReuseTable(widths, capacity * WEIGHT, capacity * HALF_LIFE)
        self._cells: dict[Traits, list[Cell]] = {}
        self._due: list[tuple[float, int, Cell]] = []
        self._offers: list[tuple[float, int, Cell]] = []
        self._ties = 0
        self._num_leaves = 0
        self._now = 0

    def __len__(self) -> int:
        return self._num_leaves

    def advance(self, now: int) -> None:
        self._now = now
        while self._due and self._due[0][0] <= now:
            self._grow_older(heappop(self._due)[2])
        kind = self._table.learn(now)
        if kind is not None:
            for cell in self._cells[kind.traits]:
                cell.rate = kind.rates[cell.band]
                cell.offered = False
                self._offer(cell)

    def hit(self, node: Node) -> None:
        cell = node.mark
        if isinstance(cell, Cell):
            cell.kind.used[cell.band] += len(node.tokens) / TOKEN_BYTES
            self.forget(node)

    def rest(self, node: Node, generated: int) -> None:
        cell = node.mark
        if isinstance(cell, Cell):
            cell.nodes.move_to_end(node)
        else:
            self._enter(node, self._youngest(_traits(node, generated)))

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
        assert isinstance(cell, Cell) and leaf not in cell.leaves
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
            if cell.leaves and rate == cell.rate:
                self._num_leaves -= 1
                return cell.leaves.popitem(last=False)[0]
            heappop(self._offers)
            cell.offered = cell.offered and rate != cell.rate

    def _youngest(self, traits: Traits) -> Cell:
        cells = self._cells.get(traits)
        if cells is None:
            kind = self._table.kind(traits, self._now)
            cells = self._cells[traits] = []
            for band in reversed(range(BANDS)):
                cells.append(Cell(kind, band, cells[-1] if cells else None))
        return cells[-1]

    def _enter(self, node: Node, cell: Cell) -> None:
        node.mark = cell
        cell.nodes[node] = None
        cell.kind.seen[cell.band] += len(node.tokens) / TOKEN_BYTES
        self._schedule(cell)

    def _schedule(self, cell: Cell) -> None:
        if cell.due or not cell.nodes or cell.older is None:
            return
        cell.due = True
        self._ties += 1
        longest = next(iter(cell.nodes))
        heappush(self._due, (longest.last_use + self._ends[cell.band], self._ties, cell))

    def _grow_older(self, cell: Cell) -> None:
        """Moves those nodes of a cell on that have reached the end of its band."""
        older = cell.older
        assert older is not None
        cell.due = False
        latest = self._now - self._ends[cell.band]
        while cell.nodes and (node := next(iter(cell.nodes))).last_use <= latest:
            del cell.nodes[node]
            self._enter(node, older)
            if node in cell.leaves:
                del cell.leaves[node]
                older.leaves[node] = None
                self._offer(older)
        self._schedule(cell)

    def _offer(self, cell: Cell) -> None:
        if cell.offered or not cell.leaves:
            return
        cell.offered = True
        self._ties += 1
        heappush(self._offers, (cell.rate, self._ties, cell))
        if len(self._offers) > 64 + 4 * BANDS * len(self._cells):
            self._offers = [offer for offer in self._offers if offer[0] == offer[2].rate]
            heapify(self._offers)


def _traits(node: Node, generated: int) -> Traits:
    """A scale has one step for each doubling (hits) or quadrupling (lengths)."""
    assert node.parent is not None
    hits = min(node.hits.bit_length(), 4)
    parent = -1
    if not hits and node.parent.parent is not None:
        parent = min(node.parent.hits, 1)
    return Traits(hits, parent, len(node.tokens).bit_length() // 2, generated.bit_length() // 2)
