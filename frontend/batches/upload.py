"""POST /v1/files: receives a file of a batch and stores it."""

from __future__ import annotations

import asyncio
import secrets

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ...runtime.errors import RequestError
from ..http.body_memory import Share
from ..http.http_service import HttpService
from ..http.tenants import caller_of, owner_of
from ..request.validation import missing_field
from ..work.caller import ClientGoneError
from .answers import json_response, whole_number
from .form import MAX_FILE_BYTES, UploadForm, file_too_large
from .records import FileRecord, file_object
from .storage import open_store
from .store import KEPT_SECONDS, Store

PIECE_BYTES = 1024 * 1024  # of the body that are parsed and written at a time
FORM_BYTES = 64 * 1024  # of a body beside its file
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
    await store.begin_file(file, owner, PURPOSE)
    record = None
    try:
        await store.reserve(file, declared)
        share.add(PIECE_BYTES)
        await _write_pieces(store, request, form, file)
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


async def _write_pieces(store: Store, request: Request, form: UploadForm, file: str) -> None:
    received = 0
    piece = bytearray()
    try:
        async for data in request.stream():
            piece += data
            if len(piece) >= PIECE_BYTES:
                received += len(piece)
                await store.reserve(file, received)
                await asyncio.to_thread(form.feed, bytes(piece))
                piece.clear()
    except ClientDisconnect:
        raise ClientGoneError from None
    await store.reserve(file, received + len(piece))
    await asyncio.to_thread(form.feed, bytes(piece))


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
