"""The answer to input that is not a valid request."""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus

from ....runtime.errors import RequestError
from ..faces import error_headers


def refusal_bytes(error: RequestError, body: bytes, more: Mapping[str, str]) -> bytes:
    """The answer. `body` is the error as JSON, `more` are further headers."""
    headers = {
        "date": formatdate(usegmt=True),
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
        **error_headers(error),
        **more,
    }
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
