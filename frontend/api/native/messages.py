"""The messages of the WebSocket /generate/socket. Each is a JSON object in one message of text."""

from __future__ import annotations

from codecs import BOM_UTF8
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from ....runtime.errors import RequestError
from ...core.type_errors import json_mistake
from ...http.apis import RETRY_AFTER_SECONDS, with_short_texts
from .answers import Form
from .protocol import End, ErrorBody, Event, Generated

RequestId = Annotated[str, Meta(min_length=1, max_length=128)]
"""The client's name for a request. Open requests of a connection must have different names."""


class Start(Struct, tag_field="type", tag="generate", forbid_unknown_fields=True):
    """Starts a request. `request` is a body of POST /generate."""

    id: RequestId
    request: Raw


class Cancel(Struct, tag_field="type", tag="cancel", forbid_unknown_fields=True):
    """Cancels an open request."""

    id: RequestId


class EventMessage(Struct, tag_field="type", tag="event"):
    """An addition to a choice of a streamed request."""

    id: str
    event: Event


class EndMessage(Struct, tag_field="type", tag="end"):
    """The last message of a streamed request."""

    id: str
    end: End


class ReplyMessage(Struct, tag_field="type", tag="reply"):
    """The whole answer to a request that is not streamed."""

    id: str
    reply: Generated


class CancelledMessage(Struct, tag_field="type", tag="cancelled"):
    """The last message of a request that was cancelled."""

    id: str


class ErrorMessage(Struct, tag_field="type", tag="error", omit_defaults=True):
    """The last message of a request that failed. It has no id if it answers a message without one.

    `status` is the HTTP status of such an error. `retry_after` is in seconds.
    """

    id: str | None
    status: int
    error: ErrorBody
    retry_after: int | None = None


SENT = (EventMessage, EndMessage, ReplyMessage, CancelledMessage, ErrorMessage)

_encode = msgspec.json.encode
_decoder: msgspec.json.Decoder[Start | Cancel] = msgspec.json.Decoder(Start | Cancel)
_ADVICE = 'Send {"type": "generate", "id": "…", "request": {…}} or {"type": "cancel", "id": "…"}.'


def read_message(text: bytes) -> Start | Cancel:
    """Decodes a client's message. Raises `RequestError` for a malformed one."""
    try:
        return _decoder.decode(text.removeprefix(BOM_UTF8))
    except msgspec.ValidationError as error:
        problem = f"The message is wrong: {error}"
    except msgspec.DecodeError as error:
        problem = f"The message is not valid JSON: {json_mistake(text, error)}"
    except RecursionError:
        problem = "The message's JSON is nested too deeply"
    raise RequestError(f"{problem}. {_ADVICE}", code="invalid_message")


def message_form(id: str) -> Form:
    """The form of answers to the request `id`: lines, of which each is a message."""
    return Form(
        event=lambda event: _line(EventMessage(id, event)),
        end=lambda end: _line(EndMessage(id, end)),
        whole=lambda reply: _line(ReplyMessage(id, reply)),
        error=partial(_error_line, id),
        always_streams=True,
    )


def error_message(id: str | None, error: RequestError) -> str:
    return _error_line(id, error).decode().rstrip()


def cancelled_message(id: str) -> str:
    return _encode(CancelledMessage(id)).decode()


def _error_line(id: str | None, error: RequestError) -> bytes:
    short = with_short_texts(error)
    retry_after = (error.retry_after or RETRY_AFTER_SECONDS) if error.status in (429, 503) else None
    body = ErrorBody(short.message, short.code, short.param)
    return _line(ErrorMessage(id, error.status, body, retry_after))


def _line(message: Struct) -> bytes:
    return _encode(message) + b"\n"
