"""OpenAI's error object, as a body and as an event of a stream."""

from __future__ import annotations

import msgspec

from ....runtime.errors import RequestError
from .responses import ErrorBody, ErrorResponse

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def error_json(error: RequestError, request_id: str = "") -> bytes:
    """The body of an error, without the `request_id`."""
    kind = _TYPES.get(error.status) or ("server_error" if error.status >= 500 else "invalid_request_error")
    body = ErrorBody(error.message, kind, error.param, error.code)
    return msgspec.json.encode(ErrorResponse(body))


def error_event(error: RequestError) -> bytes:
    return b"data: " + error_json(error) + b"\n\n"
