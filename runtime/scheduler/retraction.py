"""Chooses the running request that gives its pages to others."""

from __future__ import annotations

from collections.abc import Sequence

from .rank import is_background
from .request import Request


def to_retract(running: Sequence[Request], *, own_priorities: bool) -> Request:
    """The youngest request of the worst priority; with own priorities, of the tenant of the youngest.

    Requests in the background come first in any case.
    """
    if background := _in_background(running):
        running = background
    elif own_priorities:
        youngest = max(running, key=lambda request: request.arrival)
        running = [request for request in running if request.tenant == youngest.tenant]
    return max(running, key=lambda request: (request.priority, request.arrival))


def youngest_in_background(running: Sequence[Request]) -> Request | None:
    """The request in the background that arrived last."""
    return max(_in_background(running), key=lambda request: request.arrival, default=None)


def _in_background(running: Sequence[Request]) -> list[Request]:
    return [request for request in running if is_background(request.priority)]
