"""Anthropic's API as a face of the server: its routes and the form of its errors."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import Route

from ..http.endpoint import GenerationEndpoint
from ..http.faces import Face, route
from ..http.http_service import HttpService
from .count_tokens import count_tokens
from .errors import STATUSES, error_json
from .messages import prepare_message
from .models import list_models, show_model


def _routes(http: HttpService) -> Sequence[Route]:
    return [
        Route("/v1/messages", GenerationEndpoint(http, prepare_message), methods=["POST"]),
        route("POST", "/v1/messages/count_tokens", http, count_tokens),
        route("GET", "/v1/models", http, list_models),
        route("GET", "/v1/models/", http, list_models),
        route("GET", "/v1/models/{model:path}", http, show_model),
    ]


ANTHROPIC = Face(
    _routes,
    error_json,
    prefixes=("/v1/messages",),
    shared=("/v1/models",),
    header=b"anthropic-version",
    id_header=b"request-id",
    statuses=STATUSES,
    batched=("/v1/messages",),
)
