"""Arbora's own API as a face of the server: its route and the form of its errors."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import Route

from ..http.endpoint import GenerationEndpoint
from ..http.faces import Face
from ..http.http_service import HttpService
from .errors import error_json
from .generate import prepare_generate


def _routes(http: HttpService) -> Sequence[Route]:
    return [Route("/generate", GenerationEndpoint(http, prepare_generate), methods=["POST"])]


NATIVE = Face(_routes, error_json, prefixes=("/generate",))
