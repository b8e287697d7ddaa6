"""Ollama's errors, as a body and as a line of a stream."""

from __future__ import annotations

import msgspec

from ....runtime.errors import RequestError
from .responses import ErrorResponse


def error_json(error: RequestError, request_id: str = "") -> bytes:
    """`request_id` has no place in this form."""
    return msgspec.json.encode(ErrorResponse(error.message, error.code, error.param))


def error_line(error: RequestError) -> bytes:
    return error_json(error) + b"\n"
