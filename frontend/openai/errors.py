"""OpenAI's error object, as a response and as an event of a stream."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from ...runtime.errors import RequestError
from .responses import ErrorBody, ErrorResponse

MAX_MESSAGE = 2048  # characters
MAX_PARAM = 256
RETRY_AFTER_SECONDS = 5
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


def error_headers(error: RequestError) -> dict[str, str]:
    """429 and 503 say when to try again, 401 how to authenticate."""
    if error.status in (429, 503):
        return {"retry-after": str(error.retry_after or RETRY_AFTER_SECONDS)}
    return {"www-authenticate": "Bearer"} if error.status == 401 else {}


def error_response(error: RequestError, headers: dict[str, str] | None = None) -> Response:
    all_headers = {**(headers or {}), **error_headers(error)}
    return Response(error_json(error), error.status, all_headers, "application/json")


def error_event(error: RequestError) -> bytes:
    return b"data: " + error_json(error) + b"\n\n"
