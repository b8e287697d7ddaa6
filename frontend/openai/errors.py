"""OpenAI's error object, as a body and as an event of a stream."""

from __future__ import annotations

import msgspec

from ...runtime.errors import RequestError
from .responses import ErrorBody, ErrorResponse

MAX_MESSAGE = 2048  # characters
MAX_PARAM = 256
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def error_json(error: RequestError) -> bytes:
    kind = _TYPES.get(error.status) or ("server_error" if error.status >= 500 else "invalid_request_error")
    param = None if error.param is None else _shortened(error.param, MAX_PARAM)
    body = ErrorBody(_shortened(error.message, MAX_MESSAGE), kind, param, error.code)
    return msgspec.json.encode(ErrorResponse(body))


def _shortened(text: str, most: int) -> str:
    """Shortens text that may quote the client's own, which may be as long as its body."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}…{text[-most // 2 :]}"


def error_event(error: RequestError) -> bytes:
    return b"data: " + error_json(error) + b"\n\n"
