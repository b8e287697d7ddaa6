"""Counts the connections of this process, limits them, and closes idle ones for new ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from ....runtime.errors import RequestError
from .limits import Limits

TICK_SECONDS = 1.0
FEW = 8  # few: less than one in so many of the allowed connections


class Member(Protocol):
    def check(self, now: float) -> None:
        """Close the connection if one of its deadlines has passed."""

    def evict(self, error: RequestError) -> None:
        """Close the connection, which has no complete request."""


class Connections:
    """Checks the deadlines of all connections at intervals. `on_change` is called when another connection may
    be accepted."""

    def __init__(self, limits: Limits) -> None:
        self.on_change: Callable[[], None] | None = None
        self._limits = limits
        self._open: set[Member] = set()
        self._refused: set[Member] = set()
        # Since when each connection without a complete request waits, the longest wait first.
        self._waiting: dict[Member, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def acceptable(self) -> int:
        """How many connections can be accepted now, to be served or refused.

        0 while many connections wait for requests that may be on the way: each will soon have one, or may be
        closed.
        """
        free = self._limits.connections - len(self._open)
        if free > 0:
            return free
        few_wait = len(self._waiting) * FEW < self._limits.connections
        refusals = self._limits.refused_connections - len(self._refused)
        return refusals if few_wait or self._may_evict() else 0

    def add(self, member: Member) -> bool:
        """Whether the connection may send requests.

        If not, the connection stays open only to receive the refusal.
        """
        if len(self._open) >= self._limits.connections and not self._evict_oldest():
            self._refused.add(member)
        else:
            self._open.add(member)
            self._waiting[member] = _now()
        if self._timer is None:
            self._arm()
        return member in self._open

    def remove(self, member: Member) -> None:
        self._open.discard(member)
        self._refused.discard(member)
        self._waiting.pop(member, None)
        self._changed()
        if self._timer is not None and not self._open and not self._refused:
            self._timer.cancel()
            self._timer = None

    def has_request(self, member: Member) -> None:
        """The connection's request is complete: no new connection evicts it before the answer is sent."""
        self._waiting.pop(member, None)
        self._changed()

    def waits(self, member: Member) -> None:
        """The connection has no request any more."""
        if member in self._open:
            self._waiting[member] = _now()

    def _may_evict(self) -> bool:
        if not self._waiting:
            return False
        oldest = next(iter(self._waiting.values()))
        return _now() - oldest >= self._limits.spared_seconds

    def _evict_oldest(self) -> bool:
        """Evicts the connection that has waited longest for a request. It counts no more, and closes soon."""
        if not self._may_evict():
            return False
        oldest = next(iter(self._waiting))
        del self._waiting[oldest]
        self._open.discard(oldest)
        self._refused.add(oldest)
        oldest.evict(too_many_connections())
        return True

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        tick = min(TICK_SECONDS, self._limits.head_seconds / 4, self._limits.linger_seconds / 4)
        self._timer = loop.call_later(tick, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for member in [*self._open, *self._refused]:
            member.check(now)
        self._timer = None
        if self._open or self._refused:
            self._arm()


def _now() -> float:
    return asyncio.get_running_loop().time()


def too_many_connections() -> RequestError:
    return RequestError(
        "The server has as many connections as it can hold. Try again in a moment.",
        status=503,
        code="too_many_connections",
    )
