"""POST /v1/files: receives a file of a batch and stores it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ....runtime.errors import RequestError
from ...core.validation import missing_field
from ...core.work.caller import ClientGoneError
from ...http.body_memory import Share
from ...http.http_service import HttpService
from ...http.tenants import caller_of, owner_of
from .answers import json_response, whole_number
from .form import MAX_FILE_BYTES, UploadForm, file_too_large
from .records import FileRecord, file_object
from .storage import open_store
from .store import KEPT_SECONDS, Store

PIECE_BYTES = 1024 * 1024
"""bytes of the body that are parsed and written at a time"""
PIECE_SECONDS = 60
"""most seconds for a piece to arrive"""
MOST_UPLOADS = 16
"""uploads of one key that have not ended"""
FORM_BYTES = 64 * 1024
"""most bytes of a body beside its file"""
PURPOSE = "batch"
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
ANCHOR_EVENT = "created_at"
"""the only event from which the time of a file is counted"""
LEAST_SECONDS = 3600


async def upload_file(http: HttpService, request: Request) -> Response:
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > MAX_FILE_BYTES + FORM_BYTES:
        raise file_too_large()
    owner = owner_of(request.scope)
    with http.bodies.memory.share(caller_of(request, http.service.config).name) as share:
        async with open_store(http.service.config) as store:
            await store.sweep()
            record = await _receive(store, request, owner, share, int(declared) if declared.isdigit() else 0)
    return json_response(file_object(record))


async def _receive(store: Store, request: Request, owner: str, share: Share, declared: int) -> FileRecord:
    """The stored file. Nothing of it remains if the request fails."""
    file = f"file-{secrets.token_hex(12)}"
    form = UploadForm(request.headers.get("content-type", ""), store.path(file))
    await store.check_space(owner, declared)
    await store.begin_file(file, owner, PURPOSE, MOST_UPLOADS)
    record = None
    try:
        share.add(PIECE_BYTES)
        received = 0
        chunks = request.stream()
        while piece := await _piece(chunks):
            received += len(piece)
            await store.reserve(file, owner, received)
            await asyncio.to_thread(form.feed, piece)
        await asyncio.to_thread(form.finish)
        seconds = _checked_fields(form)
        record = await store.finish_file(file, form.filename or "", form.size, seconds)
    finally:
        form.close()
        if record is None:
            await store.remove_file(file)
    if record is None:
        raise RequestError("The upload took too long and was removed.", status=408, code="request_timeout")
    return record


async def _piece(chunks: AsyncIterator[bytes]) -> bytes:
    """The next piece of the body; empty at its end. Raises `RequestError` if it takes too long."""
    piece = bytearray()
    try:
        async with asyncio.timeout(PIECE_SECONDS):
            async for data in chunks:
                piece += data
                if len(piece) >= PIECE_BYTES:
                    break
    except ClientDisconnect:
        raise ClientGoneError from None
    except TimeoutError:
        raise RequestError(
            f"The upload is too slow: {len(piece)} bytes came in {PIECE_SECONDS} s, but {PIECE_BYTES} or the "
            "rest of the body must come in that time.",
            status=408,
            code="request_timeout",
        ) from None
    return bytes(piece)


def _checked_fields(form: UploadForm) -> int:
    """The seconds for which the file is kept. Raises `RequestError`."""
    purpose = form.fields.get("purpose")
    if purpose is None:
        raise missing_field("purpose")
    if purpose != PURPOSE:
        raise RequestError(
            f"purpose is {purpose[:100]!r}, but this server has files only for the purpose {PURPOSE!r}.",
            param="purpose",
            code="invalid_value",
        )
    seconds, anchor = form.fields.get(SECONDS), form.fields.get(ANCHOR)
    if seconds is None and anchor is None:
        return KEPT_SECONDS
    check_anchor(ANCHOR, anchor)
    return whole_number(SECONDS, seconds or "", LEAST_SECONDS, KEPT_SECONDS)


def check_anchor(name: str, anchor: str | None) -> None:
    if anchor != ANCHOR_EVENT:
        raise RequestError(
            f"{name} is {(anchor or '')[:100]!r}, but must be {ANCHOR_EVENT!r}.",
            param=name,
            code="invalid_value",
        )
