"""Anthropic's errors, as a body and as an event of a stream, and its headers about the limits of API keys."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from ....runtime.api_keys import Allowances
from ....runtime.errors import RequestError
from ...http.allowances import by_kind
from ...http.apis import Headers
from .responses import ErrorBody, ErrorDetails, ErrorResponse

STATUSES = {503: 529}
"""Anthropic's status for a server that can't take a request now."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_TOO_LONG = "prompt is too long: "
"""Words by which clients such as Claude Code know that they must shorten the conversation."""


def error_json(error: RequestError, request_id: str) -> bytes:
    is_too_long = error.code == "context_length_exceeded" and error.param == "messages"
    message = _TOO_LONG + error.message if is_too_long else error.message
    kind = _TYPES.get(error.status) or ("api_error" if error.status >= 500 else "invalid_request_error")
    body = ErrorBody(kind, message, ErrorDetails(error.code, error.param))
    return msgspec.json.encode(ErrorResponse(error=body, request_id=request_id or None))


def error_event(error: RequestError, request_id: str) -> bytes:
    return b"event: error\ndata: " + error_json(error, request_id) + b"\n\n"


def allowance_headers(allowances: Allowances) -> Headers:
    """The headers about the limits of an API key."""
    now = datetime.now(UTC)
    for kind, allowance in by_kind(allowances):
        full_at = now + timedelta(seconds=allowance.full_in_s)
        name = b"anthropic-ratelimit-" + kind
        yield name + b"-limit", b"%d" % allowance.limit
        yield name + b"-remaining", b"%d" % allowance.left
        yield name + b"-reset", full_at.strftime("%Y-%m-%dT%H:%M:%SZ").encode()
