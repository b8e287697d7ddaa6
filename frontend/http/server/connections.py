"""Limits how many connections this process has, and how many requests start in one turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ....runtime.errors import RequestError
from .limits import Limits

TICK_SECONDS = 1.0
WAITING_PART = 8  # "few" connections wait if they are less than 1 / WAITING_PART of the limit


class Member(Protocol):
    def check(self, now: float) -> None:
        """Close the connection if one of its deadlines has passed."""

    def evict(self, error: RequestError) -> None:
        """Close the connection, which has sent no complete request, with an error."""

    def stop(self) -> None:
        """Close the connection after the request that is being read or answered."""


class Connections:
    """Checks the deadlines of all connections at intervals, and closes idle ones for new ones. `on_change` is
    called when another connection may be accepted."""

    def __init__(self, limits: Limits) -> None:
        self.on_change: Callable[[], None] | None = None
        self._limits = limits
        self._open: set[Member] = set()
        self._refused: set[Member] = set()
        # When each connection without a complete request began to wait, the longest wait first.
        self._waiting: dict[Member, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def are_open(self) -> bool:
        return bool(self._open or self._refused)

    def stop(self) -> None:
        """Closes each connection after the request that it is reading or answering."""
        for member in [*self._open, *self._refused]:
            member.stop()

    def acceptable(self) -> int:
        """How many connections can be accepted now, to be served or refused.

        0 while many connections wait for requests that may be on the way: each will soon have one, or may be
        closed.
        """
        free = self._limits.connections - len(self._open)
        if free > 0:
            return free
        few_wait = len(self._waiting) * WAITING_PART < self._limits.connections
        refusals = self._limits.refused_connections - len(self._refused)
        return refusals if few_wait or self._may_evict() else 0

    def add(self, member: Member) -> bool:
        """Counts a new connection. Returns whether it may send requests.

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
        if self._timer is not None and not self.are_open:
            self._timer.cancel()
            self._timer = None

    def has_request(self, member: Member) -> None:
        """Protects a connection with a complete request from eviction until its answer is sent."""
        self._waiting.pop(member, None)
        self._changed()

    def waits(self, member: Member) -> None:
        """Notes that the connection waits for its next request, so that it may be evicted."""
        if member in self._open:
            self._waiting[member] = _now()

    def _may_evict(self) -> bool:
        if not self._waiting:
            return False
        oldest = next(iter(self._waiting.values()))
        return _now() - oldest >= self._limits.spared_seconds

    def _evict_oldest(self) -> bool:
        """Evicts the connection that has waited longest for a request. It closes soon."""
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
        if self.are_open:
            self._arm()


def _now() -> float:
    return asyncio.get_running_loop().time()


def too_many_connections() -> RequestError:
    return RequestError(
        "The server has as many connections as it can hold. Try again in a moment.",
        status=503,
        code="too_many_connections",
    )


class StartLimit:
    """Lets `max_starts` requests start in each turn of the event loop, so that other work runs between them.
    Others wait for later turns, in order."""

    def __init__(self, max_starts: int) -> None:
        self._max_starts = max_starts
        self._left = max_starts
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_armed = False

    def take(self, start: Callable[[], None]) -> bool:
        """Returns whether the request may start in this turn. If not, calls `start` in a later turn."""
        self._arm()
        if self._left > 0 and not self._waiting:
            self._left -= 1
            return True
        self._waiting.append(start)
        return False

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_armed = False
        self._left = self._max_starts
        if not self._waiting:
            return
        self._arm()
        while self._waiting and self._left > 0:
            self._left -= 1
            self._waiting.popleft()()
