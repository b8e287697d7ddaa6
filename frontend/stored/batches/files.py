"""The endpoints of /v1/files. An upload is written to the disk while it arrives."""

from __future__ import annotations

import asyncio
import secrets
import stat
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response

from ....runtime.errors import RequestError
from ...core.validation import missing_field
from ...core.work.caller import ClientGoneError
from ...http.body import Share
from ...http.tenants import caller_of, owner_of
from ..records.paging import make_page, parse_number, parse_page_query
from ..records.storage_errors import storage_errors
from .batch_service import BatchService, json_response, missing_record
from .file_store import CONTENTS, KEPT_SECONDS, FileStore
from .objects import FileDeleted, FileObject
from .upload_form import MAX_FILE_BYTES, UploadForm, file_too_large

MAX_LISTED = 10_000
PIECE_BYTES = 1024 * 1024
"""bytes of the body that are parsed and written at a time"""
PIECE_SECONDS = 60
"""most seconds for a piece to arrive"""
MAX_UPLOADS = 16
"""uploads of one key that have not ended"""
FORM_BYTES = 64 * 1024
"""most bytes of a body beside its file"""
PURPOSE = "batch"
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
ANCHOR_EVENT = "created_at"
"""the only event from which the time of a file is counted"""
MIN_SECONDS = 3600


async def upload_file(service: BatchService, request: Request) -> Response:
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > MAX_FILE_BYTES + FORM_BYTES:
        raise file_too_large()
    size = int(declared) if declared.isdigit() else 0
    http, files = service.http, service.store().files
    with http.bodies.memory.share(caller_of(request, http.service.config).name) as share:
        await files.records.sweep()
        with storage_errors(CONTENTS):
            file = await _receive(files, request, owner_of(request.scope), share, size)
    return json_response(file)


async def list_files(service: BatchService, request: Request) -> Response:
    query = request.query_params
    page = parse_page_query(query, MAX_LISTED, MAX_LISTED)
    rows = await service.store().files.list_page(owner_of(request.scope), query.get("purpose"), page)
    return json_response(make_page(rows, page.limit, FileObject))


async def show_file(service: BatchService, request: Request) -> Response:
    return json_response(await _find(service, request))


async def file_content(service: BatchService, request: Request) -> Response:
    """The file in pieces, read on another thread."""
    file = await _find(service, request)
    path = service.store().files.path(file.id)
    with storage_errors(CONTENTS):
        found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise RequestError(f"{file.id} is damaged.", status=500, code="storage_failed")
    return FileResponse(path, stat_result=found, filename=file.filename, media_type="application/jsonl")


async def delete_file(service: BatchService, request: Request) -> Response:
    id = request.path_params["file"]
    if not await service.store().files.delete(id, owner_of(request.scope)):
        raise missing_record("file", id)
    return json_response(FileDeleted(id))


async def _find(service: BatchService, request: Request) -> FileObject:
    id = request.path_params["file"]
    file = await service.store().files.find(id, owner_of(request.scope))
    if file is None:
        raise missing_record("file", id)
    return file


async def _receive(files: FileStore, request: Request, owner: str, share: Share, declared: int) -> FileObject:
    """The stored file. Nothing of it remains if the request fails."""
    id = f"file-{secrets.token_hex(12)}"
    form = UploadForm(request.headers.get("content-type", ""), files.path(id))
    await files.begin(id, owner, declared, MAX_UPLOADS)
    file = None
    try:
        share.add(PIECE_BYTES)
        received = 0
        chunks = request.stream()
        while piece := await _read_piece(chunks):
            received += len(piece)
            await files.reserve(id, owner, received)
            await asyncio.to_thread(form.feed, piece)
        await asyncio.to_thread(form.finish)
        seconds = _check_fields(form)
        file = await files.finish(id, owner, form.filename or "", form.size, seconds)
    finally:
        form.close()
        if file is None:
            await files.remove(id)
    if file is None:
        raise RequestError("The upload took too long and was removed.", status=408, code="request_timeout")
    return file


async def _read_piece(chunks: AsyncIterator[bytes]) -> bytes:
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


def _check_fields(form: UploadForm) -> int:
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
    return parse_number(SECONDS, seconds or "", MIN_SECONDS, KEPT_SECONDS)


def check_anchor(name: str, anchor: str | None) -> None:
    if anchor != ANCHOR_EVENT:
        raise RequestError(
            f"{name} is {(anchor or '')[:100]!r}, but must be {ANCHOR_EVENT!r}.",
            param=name,
            code="invalid_value",
        )
