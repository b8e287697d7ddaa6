"""Ollama's API as a face of the server: its routes and the form of its errors."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import Route

from ..http.endpoint import GenerationEndpoint
from ..http.faces import Face, route
from ..http.http_service import HttpService
from .errors import error_json
from .generation import prepare_chat, prepare_generate
from .model_files import ModelFiles
from .models import Models
from .not_served import NOT_SERVED, refuse


def _routes(http: HttpService) -> Sequence[Route]:
    models = Models(ModelFiles.read(http.service.config))
    refused = [route(method, path, http, refuse) for method, path in NOT_SERVED]
    for each in refused:
        each.include_in_schema = False
    return [
        Route("/api/chat", GenerationEndpoint(http, prepare_chat), methods=["POST"]),
        Route("/api/generate", GenerationEndpoint(http, prepare_generate), methods=["POST"]),
        route("GET", "/api/tags", http, models.tags),
        route("GET", "/api/ps", http, models.running),
        route("GET", "/api/version", http, models.version),
        route("POST", "/api/show", http, models.show),
        *refused,
    ]


OLLAMA = Face(_routes, error_json, prefixes=("/api",))
