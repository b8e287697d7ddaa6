"""OpenAI's files and batches as a face of the server."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...core.declared import one_of, within
from ...http.faces import Applications, Face, Handler, route
from ...http.http_service import HttpService
from ...http.operation import Operation
from .batches import MOST_BATCHES_LISTED, CreateBatch, cancel_batch, create_batch, list_batches, show_batch
from .call import Endpoints
from .files import MOST_LISTED, ORDERS, delete_file, file_content, list_files, show_file
from .records import BatchObject, FileDeleted, FileObject, Page
from .runner import Pace, Runner
from .store import KEPT_SECONDS
from .upload import ANCHOR, ANCHOR_EVENT, LEAST_SECONDS, PURPOSE, SECONDS, upload_file

FILES = "/v1/files"
UPLOADS = frozenset((FILES,))
"""the paths with bodies that may be longer than others"""


class Upload(Struct):
    """The form of an upload."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    purpose: Annotated[str, one_of((PURPOSE,))]
    anchor: Annotated[str, one_of((ANCHOR_EVENT,))] | UnsetType = field(name=ANCHOR, default=UNSET)
    seconds: Annotated[int, within(LEAST_SECONDS, KEPT_SECONDS)] | UnsetType = field(
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
        "limit": Annotated[int, within(1, MOST_LISTED)],
        "after": str,
        "purpose": str,
        "order": Annotated[str, one_of(ORDERS)],
    },
    reply=Page[FileObject],
)
_SHOW_FILE = Operation(summary="Describe a file", reply=FileObject)
_DELETE_FILE = Operation(summary="Delete a file", reply=FileDeleted, errors=(507,))
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
    query={"limit": Annotated[int, within(1, MOST_BATCHES_LISTED)], "after": str},
    reply=Page[BatchObject],
)
_SHOW = Operation(summary="Describe a batch", reply=BatchObject)
_CANCEL = Operation(summary="Cancel a batch", reply=BatchObject, errors=(409, 507))


def batches_face(faces: Sequence[Face], pace: Pace | None = None) -> Face:
    """The face of batches whose lines are requests of `faces`. Errors have the form of the first one."""
    endpoints = [path for face in faces for path in face.batched]

    async def create(http: HttpService, request: Request) -> Response:
        return await create_batch(http, request, endpoints)

    async def run(http: HttpService, apps: Applications) -> None:
        await Runner(http, Endpoints(http, faces, apps), pace or Pace()).run()

    return Face(
        partial(_routes, create), faces[0].error_json, run=run, name="OpenAI batches", error=faces[0].error
    )


def _routes(create: Handler, http: HttpService) -> Sequence[Route]:
    return [
        route("POST", FILES, http, upload_file, _UPLOAD),
        route("GET", FILES, http, list_files, _LIST_FILES),
        route("GET", f"{FILES}/{{file}}", http, show_file, _SHOW_FILE),
        route("DELETE", f"{FILES}/{{file}}", http, delete_file, _DELETE_FILE),
        route("GET", f"{FILES}/{{file}}/content", http, file_content, _CONTENT),
        route("POST", "/v1/batches", http, create, _CREATE),
        route("GET", "/v1/batches", http, list_batches, _LIST),
        route("GET", "/v1/batches/{batch}", http, show_batch, _SHOW),
        route("POST", "/v1/batches/{batch}/cancel", http, cancel_batch, _CANCEL),
    ]
