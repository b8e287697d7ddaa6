"""Endpoints to read, delete and cancel a stored response, and to list its input."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import msgspec
from starlette.responses import Response, StreamingResponse

from ....runtime.errors import RequestError
from ..records.paging import Page, parse_number
from ..stored_request import Deleted, StoredRequest
from .background import Run
from .create import STREAM_HEADERS
from .events import Events
from .response_store import ResponseStore
from .responses import OPEN_STATUSES, PAGE_ITEMS
from .responses import Response as StoredResponse
from .responses_service import ResponsesService

_Request = StoredRequest[ResponsesService]
_POLL_S = 0.5
"""Seconds between two checks whether another process has ended a response."""
_MAX_EVENT = 999_999_999


async def retrieve(request: _Request) -> Response | bytes | StoredResponse:
    """The response, or its events after number `starting_after` if the query has `stream=true`."""
    owner, id, store, query = (
        request.owner,
        request.id,
        request.service.store(),
        request.http_request.query_params,
    )
    if query.get("stream", "false") != "true":
        return await _show(request)
    run = _run(request)
    text = query.get("starting_after")
    after = -1 if text is None else parse_number("starting_after", text, 0, _MAX_EVENT)
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
    return _stream(_follow_until_ended(store, owner, id, after, is_open=status in OPEN_STATUSES))


async def delete(request: _Request) -> Deleted:
    await request.service.store().delete(request.owner, request.id)
    run = _run(request)
    if run is not None:
        run.unstored = None
        run.generation.close()
    return Deleted(id=request.id, object="response")


async def cancel(request: _Request) -> bytes | StoredResponse:
    """Cancels a background response that still runs. One that has ended stays as it is."""
    owner, id, store = request.owner, request.id, request.service.store()
    if _run(request) is None and not await _is_background(store, owner, id):
        raise RequestError(
            f"{id} was not made with background: true: close the connection of a request to cancel it.",
            code="invalid_value",
        )
    assert request.service.background is not None, "a server that stores responses has it"
    await request.service.background.cancel(owner, id)
    return await _show(request)


async def list_input(request: _Request) -> Page[msgspec.Raw]:
    """A page of the items of a response's own input, the last one first by default."""
    rows = partial(request.service.store().list_input, request.owner, request.id)
    return await request.list_page(PAGE_ITEMS, msgspec.Raw, rows)


def _run(request: _Request) -> Run | None:
    """The response that the path names, if this process computes it or still has to store its end."""
    background = request.service.background
    return None if background is None else background.run_of(request.owner, request.id)


async def _show(request: _Request) -> bytes | StoredResponse:
    """The response as it is now."""
    run = _run(request)
    if run is not None and run.unstored is not None:
        return run.unstored
    return await request.service.store().read_response(request.owner, request.id)


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
        is_open = await store.read_status(owner, id) in OPEN_STATUSES
    events = await store.read_events(owner, id)
    if events is None:
        response = msgspec.json.decode(await store.read_response(owner, id), type=StoredResponse)
        yield Events(first=after + 1).of_end(response)
    else:
        yield b"".join(events[after + 1 :])


def _stream(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, headers=STREAM_HEADERS, media_type="text/event-stream")
