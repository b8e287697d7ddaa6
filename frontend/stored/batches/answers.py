"""Answers of the endpoints for files and batches, and the parameters of their lists."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ....runtime.errors import RequestError


def json_response(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def whole_number(name: str, text: str, least: int, most: int) -> int:
    """Raises a `RequestError` that names the parameter, its value and the permitted range."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
    if number is None or not least <= number <= most:
        raise RequestError(
            f"{name} is {text[:100]!r}, but must be a whole number from {least} to {most}.",
            param=name,
            code="invalid_value",
        )
    return number


def limit_of(request: Request, usual: int, most: int) -> int:
    """The query parameter `limit`. Raises `RequestError`."""
    text = request.query_params.get("limit")
    return usual if text is None else whole_number("limit", text, 1, most)


def not_found(kind: str, name: str) -> RequestError:
    return RequestError(
        f"There is no {kind} {name[:100]!r}.", status=404, param="id", code=f"{kind}_not_found"
    )
