"""Ollama's `keep_alive`: how long a conversation stays cached after a request, and how it is recognized."""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import sha256

import msgspec
from starlette.requests import Request

from ....runtime.option_values import LONGEST_DURATION, find_seconds
from ...core.replica.model_use import ModelHold
from ...core.validation import invalid_field
from ...http.outcome import MODEL_HOLD
from .protocol import ChatRequest, GenerateRequest, Message


def keep_alive_seconds(value: float | str | None) -> float | None:
    """The seconds: 0 for no time, infinity for no limit, None without the field.

    A number is in seconds, and a text is a duration such as "5m" or "1h30m"; a negative one has no limit.
    Raises `RequestError`.
    """
    if value is None:
        return None
    seconds = find_seconds(value) if isinstance(value, str) else value
    if seconds is None or math.isnan(seconds):
        raise invalid_field(
            "keep_alive",
            f"is {str(value)[:LONGEST_DURATION]!r}, but must be a number of seconds or a duration such as "
            "'5m', '1h30m' or '-1m' (no limit)",
        )
    return math.inf if seconds < 0 else seconds


def keep_model(request: Request, seconds: float | None, *, is_shared: bool) -> None:
    """Lets the request's model stay loaded for the seconds after the request, if it gives any. A model that
    clients with different keys share keeps the server's time."""
    hold: ModelHold | None = request.scope.get(MODEL_HOLD)
    if hold is not None and seconds is not None and not is_shared:
        hold.keep_alive = None if math.isinf(seconds) else seconds


def conversation_key(request: ChatRequest | GenerateRequest) -> str:
    """The key of a conversation's leases: the same in each of its turns, as it depends on their beginning."""
    if isinstance(request, ChatRequest):
        begin: Sequence[object] = _to_first_question(request.messages or ())
    else:
        begin = (request.system, request.prompt)
    return sha256(msgspec.json.encode(begin)).hexdigest()[:32]


def _to_first_question(messages: Sequence[Message]) -> Sequence[Message]:
    for index, message in enumerate(messages):
        if message.role == "user":
            return messages[: index + 1]
    return messages
