"""Arbora's own API as an API of the server: its routes and the form of its errors."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import Route

from ...http.apis import Api
from ...http.endpoint import GenerationEndpoint
from ...http.http_service import HttpService
from ...http.operation import GENERATES, DescribedRoute, Operation
from .answers import error_json
from .generate import prepare_generate
from .messages import SENT
from .protocol import End, ErrorResponse, Event, Generated, GenerateRequest
from .socket import SocketEndpoint

_GENERATE = Operation(
    summary="Continue prompts of text or token ids",
    body=GenerateRequest,
    example={"prompt": "Once upon a time", "max_tokens": 20},
    reply=Generated,
    events=(Event, End),
    errors=GENERATES,
)


_SOCKET = Operation(
    summary="Open a WebSocket for requests to /generate",
    events=SENT,
    events_type="application/json",
    status=101,
    errors=(426,),
)
SOCKET = "/generate/socket"
WEBSOCKETS = frozenset((SOCKET,))
"""The paths whose requests may become WebSockets."""


def _routes(http: HttpService) -> Sequence[Route]:
    return [
        DescribedRoute("POST", "/generate", GenerationEndpoint(http, prepare_generate), _GENERATE),
        DescribedRoute("GET", SOCKET, SocketEndpoint(http), _SOCKET),
    ]


NATIVE = Api(_routes, error_json, prefixes=("/generate",), name="Arbora", error=ErrorResponse)
