"""Paths of Ollama's API that this server refuses, with the reason."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from ....runtime.errors import RequestError
from ...http.http_service import HttpService

_NO_EMBEDDINGS = "the model generates text and has no embeddings: use a server with an embedding model."
_ONE_MODEL = "a server has one model, which it loads at start: run `arbora serve MODEL` with the one to use."

NOT_SERVED = {
    ("POST", "/api/embed"): _NO_EMBEDDINGS,
    ("POST", "/api/embeddings"): _NO_EMBEDDINGS,
    ("POST", "/api/pull"): _ONE_MODEL,
    ("POST", "/api/push"): _ONE_MODEL,
    ("POST", "/api/create"): _ONE_MODEL,
    ("POST", "/api/copy"): "give the model another name by --served-model-name.",
    ("DELETE", "/api/delete"): _ONE_MODEL,
}
"""the reasons, by method and path"""


async def refuse(http: HttpService, request: Request) -> Response:
    """Raises a `RequestError` that says what to do instead."""
    why = NOT_SERVED[request.method, request.url.path]
    raise RequestError(f"{request.url.path} is not served: {why}", code="not_served")
