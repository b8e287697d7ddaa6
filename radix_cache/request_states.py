"""Recurrent layers' states of requests: each one's live state, and the checkpoints that it may load."""

from __future__ import annotations

from collections.abc import Collection

from .checkpoints import Checkpoints
from .leases import Lease, Leases
from .lock import Lock
from .node import Checkpoint
from .packed import TOKEN_BYTES
from .tree import RadixTree


class RequestStates:
    """Gives requests places for states, and enters their checkpoints into the tree."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        tree: RadixTree,
        locks: Collection[Lock],
        leases: Leases,
        are_stored: bool,
    ) -> None:
        """locks, leases: all of the cache. are_stored: whether a page store keeps checkpoints at ends of
        pages"""
        self._checkpoints = checkpoints
        self._tree = tree
        self._locks = locks
        self._leases = leases
        self._are_stored = are_stored

    def _may_pin_more(self) -> bool:
        """Whether a request may pin another checkpoint beside its first one, or a pin one."""
        pinned = sum(max(0, len(lock.checkpoints) - 1) for lock in self._locks)
        return pinned + sum(lease.checkpoint is not None for lease in self._leases) < self._checkpoints.spare

    def make_checkpoint(self, lock: Lock, position: int, is_shared: bool) -> int | None:
        """See `PrefixCache.make_checkpoint`."""
        if lock.checkpoints and not self._may_pin_more():
            return None
        checkpoint = self._checkpoints.make(hits=2 if is_shared else 0)
        lock.checkpoints.append((position, checkpoint))
        return checkpoint.place

    def drop(self, lock: Lock, start: int, end: int) -> None:
        """Ends the request's use of its checkpoints at positions [start, end)."""
        for position, checkpoint in list(lock.checkpoints):
            if start <= position < end:
                self._drop(lock, position, checkpoint)

    def _drop(self, lock: Lock, position: int, checkpoint: Checkpoint) -> None:
        lock.checkpoints.remove((position, checkpoint))
        lock.passed.append((position, checkpoint))
        self._checkpoints.unpin(checkpoint)

    def attach(self, lock: Lock, tokens: bytes, keeps: bool) -> None:
        """Enters the request's checkpoints up to the end of `tokens` into the tree, if it `keeps` them."""
        assert lock.node is not None
        for position, checkpoint in lock.checkpoints:
            is_covered = position * TOKEN_BYTES <= len(tokens)
            if checkpoint.node is None and is_covered and keeps:
                self._tree.attach(lock.node.namespace, tokens[: position * TOKEN_BYTES], checkpoint)

    def attach_passed(self, lock: Lock, tokens: bytes, keeps: bool) -> None:
        """As `attach`; then the request may load only its last checkpoint and those not yet in the tree."""
        self.attach(lock, tokens, keeps)
        for position, checkpoint in lock.checkpoints[:-1]:
            if checkpoint.node is not None:
                self._drop(lock, position, checkpoint)

    def discard(self, lock: Lock) -> None:
        """Takes the request's checkpoints out of the tree, because they may be wrong."""
        for _, checkpoint in (*lock.passed, *lock.checkpoints):
            self._checkpoints.remove(checkpoint)
        self.release(lock, b"", is_live_kept=False, keeps=False)

    def release(self, lock: Lock, tokens: bytes, is_live_kept: bool, keeps: bool) -> None:
        """Ends the use of all states.

        is_live_kept: whether the live state is the one after `tokens`; then it becomes a checkpoint
        keeps: whether the tree keeps what the request computed
        """
        assert lock.state is not None
        if is_live_kept:
            checkpoint = self._checkpoints.convert_live(lock.state)
            lock.checkpoints.append((len(tokens) // TOKEN_BYTES, checkpoint))
        else:
            self._checkpoints.free_live(lock.state)
        lock.state = None
        self.attach(lock, tokens, keeps)
        for position, checkpoint in list(lock.checkpoints):
            self._drop(lock, position, checkpoint)
        self._supersede(lock)

    def pin(self, lease: Lease, namespace: str, tokens: bytes) -> None:
        """Pins the deepest checkpoint of the pin's tokens, unless too many are pinned."""
        _, checkpoint = self._tree.find_checkpoint(self._tree.find(namespace, tokens), tokens, False)
        if checkpoint is not None and self._may_pin_more():
            self._checkpoints.pin(checkpoint)
            lease.checkpoint = checkpoint

    def unpin(self, lease: Lease) -> None:
        if lease.checkpoint is not None:
            self._checkpoints.unpin(lease.checkpoint)
            lease.checkpoint = None

    def _supersede(self, lock: Lock) -> None:
        """Lets all checkpoints of the request but the last ones give way first."""
        kept = [each for _, each in lock.passed if each.node is not None]
        to_store = [each for each in kept if not each.key[1]][-1:] if self._are_stored else []
        for checkpoint in kept[:-1]:
            if checkpoint not in to_store:
                self._checkpoints.supersede(checkpoint)
