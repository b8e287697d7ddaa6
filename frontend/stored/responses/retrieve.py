"""GET, DELETE and POST of a stored response: its body, its events, its input, its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ....runtime.errors import RequestError
from ...http.tenants import owner_of
from ..records.paging import make_page, parse_page_query
from .background import Run
from .create import STREAM_HEADERS
from .events import Events
from .response_store import ResponseStore
from .responses import PAGE_ITEMS, Deleted
from .responses import Response as StoredResponse
from .responses_service import ResponsesService

_POLL_S = 0.5
"""seconds between two checks whether another process has ended a response"""
_MAX_DIGITS = 12
_OPEN = ("queued", "in_progress")


async def retrieve(responses: ResponsesService, request: Request) -> Response:
    """The response, or its events after number `starting_after` if the query has `stream=true`."""
    owner, id, store = owner_of(request.scope), request.path_params["id"], responses.store()
    if request.query_params.get("stream", "false") != "true":
        return await _show(responses, request)
    run = _run(responses, request)
    after = _starting_after(request.query_params.get("starting_after"))
    if run is not None:
        return _stream(run.follow(after))
    status = await store.read_status(owner, id)
    if not await _is_background(store, owner, id):
        raise RequestError(
            f"The events of {id} are not stored: only a response with background: true can be streamed "
            "again. Leave stream out to get the whole response.",
            param="stream",
            code="invalid_value",
        )
    return _stream(_follow_until_ended(store, owner, id, after, is_open=status in _OPEN))


async def delete(responses: ResponsesService, request: Request) -> Response:
    owner, id = owner_of(request.scope), request.path_params["id"]
    await responses.store().delete(owner, id)
    run = _run(responses, request)
    if run is not None:
        run.unstored = None
        run.generation.close()
    return _json(msgspec.json.encode(Deleted(id=id, object="response")))


async def cancel(responses: ResponsesService, request: Request) -> Response:
    """Cancels a background response that still runs. One that has ended stays as it is."""
    owner, id, store = owner_of(request.scope), request.path_params["id"], responses.store()
    if _run(responses, request) is None and not await _is_background(store, owner, id):
        raise RequestError(
            f"{id} was not made with background: true: close the connection of a request to cancel it.",
            code="invalid_value",
        )
    assert responses.background is not None, "a server that stores responses has it"
    await responses.background.cancel(owner, id)
    return await _show(responses, request)


async def input_items(responses: ResponsesService, request: Request) -> Response:
    """A page of the items of a response's own input, the last one first by default."""
    page = parse_page_query(request.query_params, *PAGE_ITEMS)
    id, store = request.path_params["id"], responses.store()
    rows = await store.list_input(owner_of(request.scope), id, page)
    return _json(msgspec.json.encode(make_page(rows, page.limit, msgspec.Raw)))


def _run(responses: ResponsesService, request: Request) -> Run | None:
    """The response that the path names, if this process computes it or still has to store its end."""
    background = responses.background
    if background is None:
        return None
    return background.run_of(owner_of(request.scope), request.path_params["id"])


async def _show(responses: ResponsesService, request: Request) -> Response:
    """The response as it is now."""
    run = _run(responses, request)
    if run is not None and run.unstored is not None:
        return _json(msgspec.json.encode(run.unstored))
    owner, id = owner_of(request.scope), request.path_params["id"]
    return _json(await responses.store().read_response(owner, id))


async def _is_background(store: ResponseStore, owner: str, id: str) -> bool:
    fields = msgspec.json.decode(await store.read_response(owner, id), type=dict[str, msgspec.Raw])
    return bytes(fields["background"]) == b"true"


async def _follow_until_ended(
    store: ResponseStore, owner: str, id: str, after: int, *, is_open: bool
) -> AsyncIterator[bytes]:
    """Waits until a response of another process has ended, and yields its events after number `after`.

    Without stored events, as after an interruption, it yields only the last event.
    """
    while is_open:
        await asyncio.sleep(_POLL_S)
        is_open = await store.read_status(owner, id) in _OPEN
    events = await store.read_events(owner, id)
    if events is None:
        response = msgspec.json.decode(await store.read_response(owner, id), type=StoredResponse)
        yield Events(after + 1).of_end(response)
    else:
        yield b"".join(events[after + 1 :])


def _starting_after(text: str | None) -> int:
    if text is None:
        return -1
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
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
