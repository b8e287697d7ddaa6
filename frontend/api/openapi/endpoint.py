"""GET /openapi.json and /docs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...core.service import VERSION
from ...http.apis import Api, route
from ...http.http_service import HttpService
from ...http.operation import DescribedRoute
from .document import Endpoint, document_json
from .viewer import PATHS, Viewer

DOCUMENT_PATH = "/openapi.json"
MOVED_PATH = "/docs/"
OPEN_PATHS = frozenset((DOCUMENT_PATH, MOVED_PATH, *PATHS))
"""paths that need no key: they describe only what every server of this version can do"""


def document_routes(
    http: HttpService, routes: Iterable[tuple[Api, Route]], open_paths: Collection[str]
) -> list[Route]:
    """The routes of a document that describes `routes`, and of the page that shows it."""
    viewer = Viewer()
    endpoints = [Endpoint(api, each) for api, each in routes if isinstance(each, DescribedRoute)]
    document = ServedDocument(endpoints, open_paths)
    return [
        route("GET", DOCUMENT_PATH, http, document.show),
        route("GET", "/docs", http, viewer.page),
        route("GET", MOVED_PATH, http, viewer.moved),
        route("GET", "/docs/{file}", http, viewer.file),
    ]


class ServedDocument:
    """The document of some endpoints, made when it is first asked for. Without a key only `open_paths` are
    served, on a server that has keys."""

    def __init__(self, endpoints: list[Endpoint], open_paths: Collection[str]) -> None:
        self._endpoints = endpoints
        self._open_paths = open_paths
        self._json: bytes | None = None

    async def show(self, http: HttpService, request: Request) -> Response:
        if self._json is None:
            open_paths = self._open_paths if http.service.config.api_keys else None
            self._json = await asyncio.to_thread(document_json, self._endpoints, VERSION, open_paths)
        return Response(self._json, media_type="application/json")
