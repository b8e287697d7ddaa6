"""GET /openapi.json and /docs."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ....runtime.errors import RequestError
from ...core.service import VERSION
from ...http.apis import Api, route
from ...http.http_service import HttpService
from ...http.operation import DescribedRoute
from .document import Endpoint, document_json

_FOLDER = Path(__file__).parent / "swagger_ui"
_TYPES = {
    "index.html": "text/html; charset=utf-8",
    "start.js": "text/javascript; charset=utf-8",
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
}
PATHS = ("/docs", *(f"/docs/{name}" for name in _TYPES))
_HEADERS = {
    # Swagger UI needs inline styles. Scripts and the requests of "Try it out" may only use this server.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}


class Viewer:
    """The page and its files, read once, because later no file descriptor may be free."""

    def __init__(self) -> None:
        self._files = {name: _read_packed(name) for name in _TYPES}

    async def redirect(self, http: HttpService, request: Request) -> Response:
        """Redirects to /docs, by a path without a host: a proxy may serve it under another one."""
        return Response(status_code=308, headers={"location": "../docs"})

    async def page(self, http: HttpService, request: Request) -> Response:
        return self._answer("index.html", request)

    async def file(self, http: HttpService, request: Request) -> Response:
        name = request.path_params["file"]
        if name not in self._files:
            raise RequestError(f"There is no /docs/{name} on this server.", status=404, code="not_found")
        return self._answer(name, request)

    def _answer(self, name: str, request: Request) -> Response:
        headers: Mapping[str, str] = {**_HEADERS, "content-type": _TYPES[name]}
        body = self._files[name]
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(gzip.decompress(body), headers=headers)
        return Response(body, headers={**headers, "content-encoding": "gzip"})


def _read_packed(name: str) -> bytes:
    """Reads a file of the page, packed by gzip."""
    path = _FOLDER / f"{name}.gz"
    return path.read_bytes() if path.exists() else gzip.compress((_FOLDER / name).read_bytes())


DOCUMENT_PATH = "/openapi.json"
MOVED_PATH = "/docs/"
OPEN_PATHS = frozenset((DOCUMENT_PATH, MOVED_PATH, *PATHS))
"""Paths that need no key, because they are the same on every server of this version."""


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
        route("GET", MOVED_PATH, http, viewer.redirect),
        route("GET", "/docs/{file}", http, viewer.file),
    ]


class ServedDocument:
    """The OpenAPI document of some endpoints, made when it is first asked for. On a server with API keys it
    says that every path needs a key, except `open_paths`."""

    def __init__(self, endpoints: list[Endpoint], open_paths: Collection[str]) -> None:
        self._endpoints = endpoints
        self._open_paths = open_paths
        self._json: bytes | None = None

    async def show(self, http: HttpService, request: Request) -> Response:
        if self._json is None:
            open_paths = self._open_paths if http.service.config.api_keys else None
            self._json = await asyncio.to_thread(document_json, self._endpoints, VERSION, open_paths)
        return Response(self._json, media_type="application/json")
