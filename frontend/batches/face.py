"""OpenAI's files and batches as a face of the server."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..http.faces import Face, Handler, route
from ..http.http_service import HttpService
from .batches import cancel_batch, create_batch, list_batches, show_batch
from .call import Endpoints
from .files import delete_file, file_content, list_files, show_file
from .runner import Pace, Runner
from .upload import upload_file

FILES = "/v1/files"
UPLOADS = frozenset((FILES,))
"""the paths with bodies that may be longer than others"""


def batches_face(faces: Sequence[Face], pace: Pace | None = None) -> Face:
    """The face of batches whose lines are requests of `faces`. Errors have the form of the first one."""
    endpoints = [path for face in faces for path in face.batched]

    async def create(http: HttpService, request: Request) -> Response:
        return await create_batch(http, request, endpoints)

    async def run(http: HttpService) -> None:
        await Runner(http, Endpoints(http, faces), pace or Pace()).run()

    return Face(partial(_routes, create), faces[0].error_json, run=run)


def _routes(create: Handler, http: HttpService) -> Sequence[Route]:
    return [
        route("POST", FILES, http, upload_file),
        route("GET", FILES, http, list_files),
        route("GET", f"{FILES}/{{file}}", http, show_file),
        route("DELETE", f"{FILES}/{{file}}", http, delete_file),
        route("GET", f"{FILES}/{{file}}/content", http, file_content),
        route("POST", "/v1/batches", http, create),
        route("GET", "/v1/batches", http, list_batches),
        route("GET", "/v1/batches/{batch}", http, show_batch),
        route("POST", "/v1/batches/{batch}/cancel", http, cancel_batch),
    ]
