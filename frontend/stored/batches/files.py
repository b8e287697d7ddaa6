"""GET and DELETE of /v1/files."""

from __future__ import annotations

import stat

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from ....runtime.errors import RequestError
from ...core.validation import check_word
from ...http.http_service import HttpService
from ...http.tenants import owner_of
from ..database.errors import storage_errors
from .answers import json_response, limit_of, not_found
from .records import FileDeleted, FileRecord, file_object, page_of
from .storage import CONTENTS, open_store
from .store import Store

MOST_LISTED = 10_000
ORDERS = ("asc", "desc")


async def list_files(http: HttpService, request: Request) -> Response:
    parameters = request.query_params
    limit = limit_of(request, MOST_LISTED, MOST_LISTED)
    order = parameters.get("order", "desc")
    check_word("order", order, ORDERS)
    async with open_store(http.service.config) as store:
        records = await store.files(
            owner_of(request.scope),
            parameters.get("purpose"),
            parameters.get("after"),
            "asc" if order == "asc" else "desc",
            limit + 1,
        )
    return json_response(page_of([file_object(each) for each in records[:limit]], len(records) > limit))


async def show_file(http: HttpService, request: Request) -> Response:
    async with open_store(http.service.config) as store:
        return json_response(file_object(await _found(store, request)))


async def file_content(http: HttpService, request: Request) -> Response:
    """The file in pieces, read on another thread."""
    async with open_store(http.service.config) as store:
        record = await _found(store, request)
        path = store.path(record.id)
    with storage_errors(CONTENTS):
        found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise RequestError(f"{record.id} is damaged.", status=500, code="storage_failed")
    return FileResponse(path, stat_result=found, filename=record.filename, media_type="application/jsonl")


async def delete_file(http: HttpService, request: Request) -> Response:
    file = request.path_params["file"]
    async with open_store(http.service.config) as store:
        if not await store.delete_file(file, owner_of(request.scope)):
            raise not_found("file", file)
        await store.sweep()
    return json_response(FileDeleted(file))


async def _found(store: Store, request: Request) -> FileRecord:
    file = request.path_params["file"]
    record = await store.file(file, owner_of(request.scope))
    if record is None:
        raise not_found("file", file)
    return record
