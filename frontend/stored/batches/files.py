"""The endpoints of /v1/files. An upload is written to the disk while it arrives."""

from __future__ import annotations

import asyncio
import secrets
import stat
from collections.abc import AsyncIterator
from functools import partial

from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response

from ....runtime.errors import RequestError
from ...core.validation import invalid_field, missing_field
from ...core.work.caller import ClientGoneError
from ...http.body import Share
from ..records.paging import Page, parse_number
from ..records.sqlite_file import storage_errors
from ..stored_request import Deleted, StoredRequest
from .batch_service import BatchService
from .file_store import CONTENTS, KEPT_SECONDS, FileStore
from .objects import FileObject
from .upload_form import MAX_FILE_BYTES, UploadForm, file_too_large

_Request = StoredRequest[BatchService]
PAGE_FILES = (10_000, 10_000)
"""Files on a page of a list: the default and the maximum."""
PIECE_BYTES = 1024 * 1024
"""Bytes of the body that are parsed and written at a time."""
PIECE_SECONDS = 60
"""Maximum seconds until a piece has arrived."""
MAX_UPLOADS = 16
"""Maximum uploads of one key that have not ended."""
FORM_BYTES = 64 * 1024
"""Maximum bytes of a body besides its file."""
PURPOSE = "batch"
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"
ANCHOR_EVENT = "created_at"
"""The only event from which a file's expiry may be counted."""
MIN_SECONDS = 3600


async def upload_file(request: _Request) -> FileObject:
    declared = request.http_request.headers.get("content-length", "0")
    size = int(declared) if declared.isdigit() else 0
    if size > MAX_FILE_BYTES + FORM_BYTES:
        raise file_too_large()
    files = request.service.store().files
    with request.service.http.bodies.memory.share(request.caller.name) as share:
        await files.records.sweep()
        with storage_errors(CONTENTS):
            return await _receive(files, request.http_request, request.owner, share, size)


async def list_files(request: _Request) -> Page[FileObject]:
    purpose = request.http_request.query_params.get("purpose")
    rows = partial(request.service.store().files.list_page, request.owner, purpose)
    return await request.list_page(PAGE_FILES, FileObject, rows)


async def show_file(request: _Request) -> FileObject:
    return await request.service.store().files.find(request.id, request.owner)


async def file_content(request: _Request) -> Response:
    """The file in pieces, read on another thread."""
    file = await show_file(request)
    path = request.service.store().files.path(file.id)
    with storage_errors(CONTENTS):
        found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise RequestError(f"{file.id} is damaged.", status=500, code="storage_failed")
    return FileResponse(path, stat_result=found, filename=file.filename, media_type="application/jsonl")


async def delete_file(request: _Request) -> Deleted:
    await request.service.store().files.delete(request.id, request.owner)
    return Deleted(id=request.id, object="file")


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
        raise invalid_field(
            "purpose", f"is {purpose[:100]!r}, but this server has files only for the purpose {PURPOSE!r}"
        )
    seconds, anchor = form.fields.get(SECONDS), form.fields.get(ANCHOR)
    if seconds is None and anchor is None:
        return KEPT_SECONDS
    check_anchor(ANCHOR, anchor)
    return parse_number(SECONDS, seconds or "", MIN_SECONDS, KEPT_SECONDS)


def check_anchor(name: str, anchor: str | None) -> None:
    if anchor != ANCHOR_EVENT:
        raise invalid_field(name, f"is {(anchor or '')[:100]!r}, but must be {ANCHOR_EVENT!r}")
