"""OpenAI's Responses API as a face of the server: its routes and the form of its errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..http.endpoint import GenerationEndpoint, Job
from ..http.faces import Face
from ..http.http_service import HttpService
from ..openai.errors import error_json
from . import conversations, retrieve
from .create import prepare_response
from .input_tokens import input_tokens
from .responses_service import ResponsesService

Handler: TypeAlias = Callable[[ResponsesService, Request], Awaitable[Response]]

RESPONSE, CONVERSATION = "/v1/responses/{id}", "/v1/conversations/{id}"
HANDLERS: Sequence[tuple[str, str, Handler]] = (
    ("POST", "/v1/responses/input_tokens", input_tokens),
    ("GET", RESPONSE, retrieve.retrieve),
    ("DELETE", RESPONSE, retrieve.delete),
    ("POST", f"{RESPONSE}/cancel", retrieve.cancel),
    ("GET", f"{RESPONSE}/input_items", retrieve.input_items),
    ("POST", "/v1/conversations", conversations.create),
    ("GET", CONVERSATION, conversations.show),
    ("POST", CONVERSATION, conversations.change),
    ("DELETE", CONVERSATION, conversations.delete),
    ("GET", f"{CONVERSATION}/items", conversations.list_items),
    ("POST", f"{CONVERSATION}/items", conversations.add_items),
    ("GET", f"{CONVERSATION}/items/{{item}}", conversations.show_item),
    ("DELETE", f"{CONVERSATION}/items/{{item}}", conversations.delete_item),
)


def _routes(http: HttpService) -> Sequence[Route]:
    responses = ResponsesService.of(http)

    async def prepared(http: HttpService, request: Request) -> Job | Response:
        return await prepare_response(responses, request)

    create = Route("/v1/responses", GenerationEndpoint(http, prepared), methods=["POST"])
    return [create, *(_route(responses, *each) for each in HANDLERS)]


def _route(responses: ResponsesService, method: str, path: str, handler: Handler) -> Route:
    return Route(path, partial(handler, responses), methods=[method])


RESPONSES = Face(_routes, error_json, prefixes=("/v1/responses", "/v1/conversations"))
