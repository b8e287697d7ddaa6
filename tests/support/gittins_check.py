"""The invariants of the learning policy between two operations on its cache."""

from __future__ import annotations

from collections import Counter

from arbora.radix_cache import GittinsPolicy, PrefixCache
from arbora.radix_cache.gittins import Group
from arbora.radix_cache.node import Node


def check(cache: PrefixCache) -> None:
    tree = cache._tree
    policy = tree.policy
    assert isinstance(policy, GittinsPolicy)
    cached = [node for root in tree.roots.values() for node in root.subtree() if node.parent]
    _check_marks(policy, cached + list(tree.history.nodes))
    evictable = [node for node in cached if not node.children and not node.leases and not node.locks]
    _check_leaves(policy, evictable)
    not_full = {leaf for leaf in evictable if len(leaf.tokens) % tree.page_bytes}
    assert policy._tails.leaves.keys() <= not_full, "a leaf in that queue has a tail to lose"


def _check_marks(policy: GittinsPolicy, nodes: list[Node]) -> None:
    packed: Counter[Group] = Counter()
    for node in nodes:
        assert node.mark is not None or node.locks, "an unlocked node has an age"
        if isinstance(node.mark, Group):
            packed[node.mark] += len(node.tokens)
    for groups in policy._groups:
        for group in groups.values():
            assert group.packed == packed[group], "a group counts its tokens"
    for group in packed:
        past = [band for band, end in enumerate(policy._ends, 1) if group.tick + end <= policy._tick]
        assert group.band == max(past, default=0), "a group is in the band of its age"


def _check_leaves(policy: GittinsPolicy, evictable: list[Node]) -> None:
    with_leaves = {group for groups in policy._with_leaves.values() for group in groups}
    leaves = [leaf for group in with_leaves for leaf in group.leaves]
    assert set(leaves) == set(evictable)
    assert len(leaves) == len(evictable) == len(policy)
    queued = {(group, rate) for rate, _, _, group in policy._heap}
    for group in with_leaves:
        assert all(leaf.mark is group for leaf in group.leaves)
        assert (group, group.queued_rate) in queued
        assert group.queued_rate <= group.kind.rates[group.band], "a group is queued too high"
