"""GET /, a page for browsers, and the files that it loads."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ..http.apis import route
from ..http.http_service import HttpService
from .assets import Asset, Assets, read_assets

_ASSETS = read_assets()  # read at start, because later no file descriptor may be free
OPEN_PATHS = frozenset(("/", *(f"/page/{_ASSETS.version}/{name}" for name in _ASSETS.files)))
"""Paths that need no key, because they are the same on every server of this version."""
_SECURITY = {
    # The page inserts texts and elements, never HTML, so a model's text can't become a script.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_FOREVER = "public, max-age=31536000, immutable"


def page_routes(http: HttpService) -> list[Route]:
    page = _Page(_ASSETS)
    return [
        route("GET", "/", http, page.show),
        route("GET", "/page/{version}/{file:path}", http, page.file),
    ]


class _Page:
    def __init__(self, assets: Assets) -> None:
        self._assets = assets

    async def show(self, http: HttpService, request: Request) -> Response:
        """Sends the page to browsers. Other clients, such as Ollama's, only ask whether a server runs."""
        if "text/html" not in request.headers.get("accept", ""):
            return PlainTextResponse("Arbora is running", headers={"vary": "accept"})
        etag = f'"{self._assets.version}"'
        headers = {"cache-control": "no-cache", "etag": etag, "vary": "accept, accept-encoding"}
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers={**_SECURITY, **headers})
        return _answer(self._assets.page, request, headers)

    async def file(self, http: HttpService, request: Request) -> Response:
        """A file of this version of the page. Its address changes with its content."""
        found = self._assets.files.get(request.path_params["file"])
        if found is None or request.path_params["version"] != self._assets.version:
            raise HTTPException(404)
        return _answer(found, request, {"cache-control": _FOREVER, "vary": "accept-encoding"})


def _answer(asset: Asset, request: Request, headers: dict[str, str]) -> Response:
    headers = {**_SECURITY, **headers, "content-type": asset.content_type}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(asset.body, headers=headers)
    return Response(asset.packed, headers={**headers, "content-encoding": "gzip"})
