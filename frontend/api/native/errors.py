"""The errors of /generate, as a body and as an event of a stream."""

from __future__ import annotations

import msgspec

from ....runtime.errors import RequestError
from .protocol import ErrorBody, ErrorResponse


def error_json(error: RequestError, request_id: str = "") -> bytes:
    """`request_id` has no place in this form."""
    return msgspec.json.encode(ErrorResponse(ErrorBody(error.message, error.code, error.param)))


def error_event(error: RequestError) -> bytes:
    return b"data: " + error_json(error) + b"\n\n"
