"""Ollama's API as an API of the server: its routes and the form of its errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ....runtime.errors import RequestError
from ...http.apis import Api, route
from ...http.endpoint import GenerationEndpoint
from ...http.http_service import HttpService
from ...http.operation import GENERATES, DescribedRoute, Operation
from ...http.pooling_endpoint import PoolingEndpoint
from .answers import error_json
from .embeddings import prepare_embed, prepare_embeddings
from .generation import prepare_chat, prepare_generate
from .model_files import ModelFiles
from .models import Models
from .protocol import ChatRequest, EmbeddingsRequest, EmbedRequest, GenerateRequest, ShowRequest
from .responses import Answer, Embedded, Embedding, ErrorResponse, ModelList, RunningList, ShownModel, Version

_ONE_MODEL = (
    "a server has the models that it is started with: run `arbora serve MODEL --also-serve MODEL` with those "
    "to use."
)

NOT_SERVED = {
    ("POST", "/api/pull"): _ONE_MODEL,
    ("POST", "/api/push"): _ONE_MODEL,
    ("POST", "/api/create"): _ONE_MODEL,
    ("POST", "/api/copy"): "give the model another name by --served-model-name.",
    ("DELETE", "/api/delete"): _ONE_MODEL,
}
"""The reasons why requests are not served, by method and path."""


async def refuse(http: HttpService, request: Request) -> Response:
    """Raises a `RequestError` that says what to do instead."""
    why = NOT_SERVED[request.method, request.url.path]
    raise RequestError(f"{request.url.path} is not served: {why}", code="not_served")


_CHAT = Operation(
    summary="Continue a chat",
    body=ChatRequest,
    example={"messages": [{"role": "user", "content": "Why is the sky blue?"}]},
    reply=Answer,
    events=(Answer,),
    events_type="application/x-ndjson",
    errors=GENERATES,
)
_GENERATE = replace(
    _CHAT, summary="Continue a prompt", body=GenerateRequest, example={"prompt": "Once upon a time"}
)
_EMBED = Operation(
    summary="Make embeddings of texts",
    body=EmbedRequest,
    example={"input": ["Why is the sky blue?", "Air scatters blue light."]},
    reply=Embedded,
    errors=GENERATES,
)
_EMBEDDINGS = Operation(
    summary="Make the embedding of a text",
    body=EmbeddingsRequest,
    example={"prompt": "Why is the sky blue?"},
    reply=Embedding,
    errors=GENERATES,
)
_TAGS = Operation(summary="List the models", reply=ModelList)
_RUNNING = Operation(summary="List the loaded models", reply=RunningList)
_VERSION = Operation(summary="Show the version of Ollama whose API this is", reply=Version)
_SHOW = Operation(
    summary="Describe a model", body=ShowRequest, example={"model": "arbora-builtin"}, reply=ShownModel
)


def _routes(http: HttpService) -> Sequence[Route]:
    models = Models([ModelFiles.read(each.service.config) for each in http.models])
    refused = [route(method, path, http, refuse) for method, path in NOT_SERVED]
    for each in refused:
        each.include_in_schema = False
    return [
        DescribedRoute("POST", "/api/chat", GenerationEndpoint(http, prepare_chat), _CHAT),
        DescribedRoute("POST", "/api/generate", GenerationEndpoint(http, prepare_generate), _GENERATE),
        DescribedRoute("POST", "/api/embed", PoolingEndpoint(http, prepare_embed), _EMBED),
        DescribedRoute("POST", "/api/embeddings", PoolingEndpoint(http, prepare_embeddings), _EMBEDDINGS),
        route("GET", "/api/tags", http, models.tags, _TAGS),
        route("GET", "/api/ps", http, models.running, _RUNNING),
        route("GET", "/api/version", http, models.version, _VERSION),
        route("POST", "/api/show", http, models.show, _SHOW),
        *refused,
    ]


OLLAMA = Api(_routes, error_json, prefixes=("/api",), name="Ollama", error=ErrorResponse)
