"""GET, DELETE and POST of a stored response: its body, its events, its input, its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ...runtime.errors import RequestError
from ..http.tenants import owner_of
from .create import STREAM_HEADERS
from .pages import page_of
from .responses import Deleted
from .responses_service import ResponsesService
from .store import Store

_POLL_S = 0.5  # between looks at a response that another process computes
_POLLS_FOR_EVENTS = 20
_MOST_DIGITS = 12
_OPEN = ("queued", "in_progress")


async def retrieve(responses: ResponsesService, request: Request) -> Response:
    """The response, or its events after number `starting_after` if the query has `stream=true`."""
    owner, id, store = owner_of(request.scope), request.path_params["id"], responses.store()
    if request.query_params.get("stream", "false") != "true":
        return _json(await store.response(owner, id))
    after = _starting_after(request.query_params.get("starting_after"))
    background = responses.background
    run = None if background is None else background.run_of(owner, id)
    if run is not None:
        return _stream(run.follow(after))
    if await store.status(owner, id) in _OPEN:
        return _stream(_once_ended(store, owner, id, after))
    events = await store.events(owner, id)
    if events is None:
        raise RequestError(
            f"The events of {id} are not stored: only a response with background: true can be streamed "
            "again. Leave stream out to get the whole response.",
            param="stream",
            code="invalid_value",
        )
    return _stream(_at_once(b"".join(events[after + 1 :])))


async def delete(responses: ResponsesService, request: Request) -> Response:
    owner, id = owner_of(request.scope), request.path_params["id"]
    await responses.store().delete(owner, id)
    background = responses.background
    run = None if background is None else background.run_of(owner, id)
    if run is not None:
        run.generation.close()
    return _json(msgspec.json.encode(Deleted(id=id, object="response")))


async def cancel(responses: ResponsesService, request: Request) -> Response:
    """Cancels a background response that still runs. One that has ended stays as it is."""
    owner, id, store = owner_of(request.scope), request.path_params["id"], responses.store()
    body = msgspec.json.decode(await store.response(owner, id), type=dict[str, msgspec.Raw])
    if bytes(body["background"]) != b"true":
        raise RequestError(
            f"{id} was not made with background: true: close the connection of a request to cancel it.",
            code="invalid_value",
        )
    assert responses.background is not None, "a server that stores responses has it"
    await responses.background.cancel(owner, id)
    return _json(await store.response(owner, id))


async def input_items(responses: ResponsesService, request: Request) -> Response:
    """A page of the items of a response's own input, the last one first by default."""
    rows = await responses.store().input_items(owner_of(request.scope), request.path_params["id"])
    return _json(msgspec.json.encode(page_of(rows, request.query_params)))


async def _once_ended(store: Store, owner: str, id: str, after: int) -> AsyncIterator[bytes]:
    """The events of a response that another process computes. It stores them soon after the response."""
    while await store.status(owner, id) in _OPEN:
        await asyncio.sleep(_POLL_S)
    for _ in range(_POLLS_FOR_EVENTS):
        if (events := await store.events(owner, id)) is not None:
            yield b"".join(events[after + 1 :])
            return
        await asyncio.sleep(_POLL_S)


async def _at_once(events: bytes) -> AsyncIterator[bytes]:
    yield events


def _starting_after(text: str | None) -> int:
    if text is None:
        return -1
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise RequestError(
            f"starting_after is {text[:100]!r}, but must be the sequence_number of an event.",
            param="starting_after",
            code="invalid_value",
        )
    return int(text)


def _stream(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, headers=STREAM_HEADERS, media_type="text/event-stream")


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
