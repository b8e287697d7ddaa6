"""OpenAI's files and batches as an API of the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field
from starlette.routing import Route

from ...core.declared import one_of, within
from ...http.apis import Api, Applications
from ...http.http_service import HttpService
from ...http.operation import Operation
from ..records.paging import ORDERS, Page
from ..stored_request import Deleted, HandlerRow, make_routes
from .batch_runner import BatchRunner, Pace
from .batch_service import BatchService
from .batch_store import BatchStore
from .batches import PAGE_BATCHES, CreateBatch, cancel_batch, create_batch, list_batches, show_batch
from .endpoints import Endpoints
from .file_store import KEPT_SECONDS
from .files import (
    ANCHOR,
    ANCHOR_EVENT,
    MIN_SECONDS,
    PAGE_FILES,
    PURPOSE,
    SECONDS,
    delete_file,
    file_content,
    list_files,
    show_file,
    upload_file,
)
from .objects import BatchObject, FileObject

FILES = "/v1/files"
UPLOADS = frozenset((FILES,))
"""The paths whose bodies may be longer than others."""


class Upload(Struct):
    """The form of an upload."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    purpose: Annotated[str, one_of((PURPOSE,))]
    anchor: Annotated[str, one_of((ANCHOR_EVENT,))] | UnsetType = field(name=ANCHOR, default=UNSET)
    seconds: Annotated[int, within(MIN_SECONDS, KEPT_SECONDS)] | UnsetType = field(
        name=SECONDS, default=UNSET
    )


_UPLOAD = Operation(
    summary="Upload the lines of a batch",
    body=Upload,
    body_type="multipart/form-data",
    reply=FileObject,
    errors=(507,),
)
_LIST_FILES = Operation(
    summary="List files",
    query={
        "limit": Annotated[int, within(1, PAGE_FILES[1])],
        "after": str,
        "purpose": str,
        "order": Annotated[str, one_of(ORDERS)],
    },
    reply=Page[FileObject],
)
_SHOW_FILE = Operation(summary="Describe a file", reply=FileObject)
_DELETE_FILE = Operation(summary="Delete a file", reply=Deleted, errors=(507,))
_CONTENT = Operation(summary="Download a file", reply_type="application/jsonl")
_CREATE = Operation(
    summary="Run the lines of a file in the background",
    body=CreateBatch,
    example={"input_file_id": "file-…", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
    reply=BatchObject,
    errors=(404, 429, 507),
)
_LIST = Operation(
    summary="List batches",
    query={"limit": Annotated[int, within(1, PAGE_BATCHES[1])], "after": str},
    reply=Page[BatchObject],
)
_SHOW = Operation(summary="Describe a batch", reply=BatchObject)
_CANCEL = Operation(summary="Cancel a batch", reply=BatchObject, errors=(409, 507))

HANDLERS: Sequence[HandlerRow[BatchService]] = (
    ("POST", FILES, upload_file, _UPLOAD),
    ("GET", FILES, list_files, _LIST_FILES),
    ("GET", f"{FILES}/{{id}}", show_file, _SHOW_FILE),
    ("DELETE", f"{FILES}/{{id}}", delete_file, _DELETE_FILE),
    ("GET", f"{FILES}/{{id}}/content", file_content, _CONTENT),
    ("POST", "/v1/batches", create_batch, _CREATE),
    ("GET", "/v1/batches", list_batches, _LIST),
    ("GET", "/v1/batches/{id}", show_batch, _SHOW),
    ("POST", "/v1/batches/{id}/cancel", cancel_batch, _CANCEL),
)


def batches_api(apis: Sequence[Api], pace: Pace | None = None) -> Api:
    """The API of batches whose lines are requests of `apis`. Errors have the form of the first one."""
    endpoints = [path for api in apis for path in api.batched]

    def routes(http: HttpService) -> Sequence[Route]:
        return make_routes(BatchService(http, _open_store(http), endpoints), HANDLERS)

    async def work_in_background(http: HttpService, apps: Applications) -> None:
        store = _open_store(http)
        if store is not None:
            await BatchRunner(http, store, Endpoints(http, apis, apps), pace or Pace()).run()

    return Api(
        routes,
        apis[0].error_json,
        work_in_background=work_in_background,
        name="OpenAI batches",
        error=apis[0].error,
    )


def _open_store(http: HttpService) -> BatchStore | None:
    """The store, closed with the service. None if the server stores nothing."""
    config = http.service.config
    if config.data_dir is None:
        return None
    store = BatchStore(config.data_dir, config.data_size, shares=config.has_several_keys)
    http.closers.append(store.records.close)
    return store
