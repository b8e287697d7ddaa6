"""Checkpoints: copies of the state that recurrent layers have after a prefix, kept in the tree.

Recurrent layers (Mamba, gated delta nets, short convolutions) have no pages: they fold all tokens into a
state of constant size, which can't be taken back to fewer tokens. So a request starts only at a checkpoint.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from .node import Checkpoint, Node


class Checkpoints:
    """Owns the places of states: free, the live state of a request, or a checkpoint.

    A checkpoint in the tree without pins may lose its place. First go superseded ones, for example the end of
    a prompt whose reply has ended; then the least recently used one. All states have the same size, so this
    is also the order by expected reuse per byte.

    slots: number of requests that may run. Each has its live state and may pin one checkpoint, so two places
        are kept for each. All other pins together are at most `spare`
    """

    def __init__(self, places: int, slots: int) -> None:
        assert places >= 2 * slots, f"{places} places for the states of {slots} slots"
        self.places, self.spare = places, places - 2 * slots
        self.num_evicted = 0
        self.on_evict: Callable[[Checkpoint], None] | None = None
        """called with a checkpoint before its place is taken"""
        self._free = list(range(places - 1, -1, -1))
        self._queue: OrderedDict[Checkpoint, None] = OrderedDict()  # least recently used first
        self._superseded: OrderedDict[Checkpoint, None] = OrderedDict()
        self._missing = slots  # slots without a live state

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_evictable(self) -> int:
        return len(self._queue) + len(self._superseded)

    def take_live(self) -> int:
        """Takes a place for the live state of a request that starts."""
        assert self._missing, "more live states than slots"
        self._missing -= 1
        return self._take()

    def free_live(self, place: int) -> None:
        self._missing += 1
        self._free.append(place)

    def convert_live(self, place: int) -> Checkpoint:
        """Makes a checkpoint of the live state of a request that ends. It has one pin, as from `make`."""
        self._missing += 1
        return self._pinned(Checkpoint(place))

    def make(self, hits: int = 0) -> Checkpoint:
        """A checkpoint with one pin outside of the tree. `spare` bounds how many there may be."""
        return self._pinned(Checkpoint(self._take(), hits))

    def pin(self, checkpoint: Checkpoint) -> None:
        """Keeps the checkpoint's place until `unpin`."""
        self._pinned(checkpoint)
        self._queue.pop(checkpoint, None)
        self._superseded.pop(checkpoint, None)

    def unpin(self, checkpoint: Checkpoint) -> None:
        checkpoint.pins -= 1
        if checkpoint.pins:
            return
        if checkpoint.node is None:
            self._free.append(checkpoint.place)
        else:
            self._enqueue(checkpoint)

    def attach(self, checkpoint: Checkpoint, node: Node, key: tuple[int, bytes]) -> None:
        """Enters a checkpoint into the tree, unless the same prefix has one."""
        if not node.checkpoints:
            node.checkpoints = {}
        if key not in node.checkpoints:
            node.checkpoints[key] = checkpoint
            checkpoint.node, checkpoint.key = node, key

    def supersede(self, checkpoint: Checkpoint) -> None:
        """Lets the checkpoint give way first, unless several requests have started from it."""
        if checkpoint.hits <= 1 and not checkpoint.is_superseded:
            checkpoint.is_superseded = True
            if self._queue.pop(checkpoint, self) is None:
                self._superseded[checkpoint] = None

    def use(self, checkpoint: Checkpoint) -> None:
        """Pins a checkpoint from which a request starts."""
        self.pin(checkpoint)
        checkpoint.hits += 1
        checkpoint.is_superseded = False

    def remove(self, checkpoint: Checkpoint) -> None:
        """Takes a checkpoint out of the tree, if it is there."""
        if checkpoint.node is not None:
            del checkpoint.node.checkpoints[checkpoint.key]
            self._detach(checkpoint)
            if not checkpoint.pins:
                self._free.append(checkpoint.place)

    def drop(self, node: Node) -> None:
        """Takes all checkpoints of a node that leaves the tree."""
        for checkpoint in node.checkpoints.values():
            self._detach(checkpoint)
            if not checkpoint.pins:
                self._free.append(checkpoint.place)
        node.checkpoints = {}

    def _pinned(self, checkpoint: Checkpoint) -> Checkpoint:
        checkpoint.pins += 1
        return checkpoint

    def _enqueue(self, checkpoint: Checkpoint) -> None:
        (self._superseded if checkpoint.is_superseded else self._queue)[checkpoint] = None

    def _detach(self, checkpoint: Checkpoint) -> None:
        checkpoint.node = None
        self._queue.pop(checkpoint, None)
        self._superseded.pop(checkpoint, None)

    def _take(self) -> int:
        if not self._free:
            checkpoint = next(iter(self._superseded or self._queue))
            if self.on_evict is not None:
                self.on_evict(checkpoint)
            self.remove(checkpoint)
            self.num_evicted += 1
        return self._free.pop()

    def check(self, live: list[int], nodes: list[Node], pinned: list[Checkpoint]) -> None:
        """Raises AssertionError if a place has no owner or several.

        live: places of live states. pinned: a checkpoint for each pin
        """
        in_tree = [each for node in nodes for each in node.checkpoints.values()]
        for node in nodes:
            for key, each in node.checkpoints.items():
                assert each.node is node and each.key == key, "a checkpoint knows its node"
        outside = {each for each in pinned if each.node is None}
        owned = [*self._free, *live, *(each.place for each in (*in_tree, *outside))]
        assert sorted(owned) == list(range(self.places)), "each place has exactly one owner"
        for each in {*in_tree, *outside}:
            assert each.pins == pinned.count(each), "a pin for each request that may load the checkpoint"
            assert (each in self._queue or each in self._superseded) == (not each.pins), "unpinned: evictable"
        assert self.num_free + self.num_evictable >= 2 * self._missing, "each slot has its places"
