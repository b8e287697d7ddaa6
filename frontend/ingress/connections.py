"""Counts the connections of this process, limits them, and closes idle ones for new ones."""

from __future__ import annotations

import asyncio
from typing import Protocol

from ...runtime.errors import RequestError
from .limits import Limits

TICK_SECONDS = 1.0


class Member(Protocol):
    def check(self, now: float) -> None:
        """Close the connection if one of its deadlines has passed."""

    def evict(self, error: RequestError) -> None:
        """Close the connection, which has no complete request."""


class Connections:
    """Checks the deadlines of all connections at intervals."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: set[Member] = set()
        self._refused: set[Member] = set()
        # Connections without a complete request, the longest wait first.
        self._waiting: dict[Member, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, member: Member) -> bool:
        """Whether the connection may send requests.

        If not, the connection stays open only to receive the refusal.
        """
        if len(self._open) >= self._limits.connections and not self._evict_oldest():
            self._refused.add(member)
        else:
            self._open.add(member)
            self._waiting[member] = None
        if self._timer is None:
            self._arm()
        return member in self._open

    @property
    def can_refuse(self) -> bool:
        return len(self._refused) <= self._limits.refused_connections

    def remove(self, member: Member) -> None:
        self._open.discard(member)
        self._refused.discard(member)
        self._waiting.pop(member, None)
        if self._timer is not None and not self._open and not self._refused:
            self._timer.cancel()
            self._timer = None

    def has_request(self, member: Member) -> None:
        """The connection's request is complete, so it is not closed for a new connection until the answer is
        out."""
        self._waiting.pop(member, None)

    def waits(self, member: Member) -> None:
        """The connection has no request any more."""
        if member in self._open:
            self._waiting[member] = None

    def _evict_oldest(self) -> bool:
        """Ends the oldest connection without a complete request. It no longer counts, and closes soon."""
        if not self._waiting or not self.can_refuse:
            return False
        oldest = next(iter(self._waiting))
        del self._waiting[oldest]
        self._open.discard(oldest)
        self._refused.add(oldest)
        oldest.evict(too_many_connections())
        return True

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


def too_many_connections() -> RequestError:
    return RequestError(
        "The server has as many connections as it can hold. Try again in a moment.",
        status=503,
        code="too_many_connections",
    )
