"""OpenAI's API as a face of the server: its routes and the form of its errors."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import Route

from ..http.endpoint import GenerationEndpoint
from ..http.faces import Face, route
from ..http.http_service import HttpService
from .chat import prepare_chat
from .completions import prepare_completion
from .errors import error_json
from .models import list_models, show_model
from .tokenize import detokenize, tokenize


def _routes(http: HttpService) -> Sequence[Route]:
    return [
        Route("/v1/chat/completions", GenerationEndpoint(http, prepare_chat), methods=["POST"]),
        Route("/v1/completions", GenerationEndpoint(http, prepare_completion), methods=["POST"]),
        route("GET", "/v1/models", http, list_models),
        route("GET", "/v1/models/", http, list_models),
        route("GET", "/v1/models/{model:path}", http, show_model),
        route("POST", "/tokenize", http, tokenize),
        route("POST", "/detokenize", http, detokenize),
    ]


OPENAI = Face(_routes, error_json, batched=("/v1/chat/completions", "/v1/completions"))
