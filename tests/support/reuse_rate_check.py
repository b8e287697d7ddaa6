"""What must hold of the learning policy between any two operations on its cache."""

from __future__ import annotations

from arbora.radix_cache import PrefixCache, ReuseRate
from arbora.radix_cache.node import Node
from arbora.radix_cache.reuse_rate import Cell


def check(cache: PrefixCache) -> None:
    tree = cache._tree
    policy = tree.policy
    assert isinstance(policy, ReuseRate)
    cached = [node for root in tree.roots.values() for node in root.subtree() if node.parent]
    nodes = cached + list(tree.history.nodes)
    cells = [cell for row in policy._cells.values() for cell in row]
    _check_marks(nodes, cells)
    leaves = {leaf for cell in cells for leaf in cell.leaves}
    assert leaves == {node for node in cached if not node.children and not node.locks}
    _check_queues(policy, cells)


def _check_marks(nodes: list[Node], cells: list[Cell]) -> None:
    assert sum(len(cell.nodes) for cell in cells) == sum(node.mark is not None for node in nodes)
    for node in nodes:
        assert node.mark is not None or node.locks, "what is out of use has an age"
        if isinstance(node.mark, Cell):
            assert node in node.mark.nodes
    for cell in cells:
        assert cell.leaves.keys() <= cell.nodes.keys()


def _check_queues(policy: ReuseRate, cells: list[Cell]) -> None:
    offered = {(cell, rate) for rate, _, cell in policy._offers}
    due = [cell for _, _, cell in policy._due]
    for cell in cells:
        if cell.leaves:
            assert (cell, cell.offered) in offered and cell.offered <= cell.kind.rates[cell.band]
        assert due.count(cell) == cell.due
        assert cell.due or not cell.nodes, "what has an age grows older"
