"""The declarations of endpoints, which stand beside their routes: types from which /openapi.json is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct
from starlette.routing import Route

GENERATES = (404, 429, 504)
"""Error statuses of requests that generate, besides those of every request."""


@dataclass(frozen=True, kw_only=True)
class Operation:
    """The description of an endpoint. `summary` says in a few words what a request does. `query` has the
    types of optional parameters. A body may also be of one of the types `other_bodies`.

    `reply` is the type of the JSON reply; without one the reply has the media type `reply_type`, or no body
    if that is empty. `events` are the types of a stream's events. An endpoint that has a `reply` too streams
    only if the request asks for it. `errors` are error statuses besides those that the types imply. The page
    /docs begins with the `example` of a body.
    """

    summary: str
    body: type[Struct] | None = None
    other_bodies: Sequence[type[Struct]] = ()
    body_type: str = "application/json"
    example: Mapping[str, object] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    reply: type[Struct] | None = None
    reply_type: str = "application/json"
    events: Sequence[type[Struct]] = ()
    events_type: str = "text/event-stream"
    status: int = 200
    errors: Sequence[int] = ()


class DescribedRoute(Route):
    """A route with the declaration of its endpoint."""

    def __init__(self, method: str, path: str, endpoint: Callable[..., Any], operation: Operation) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.operation = operation
