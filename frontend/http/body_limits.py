"""Limits on the size and shape of a request's body, checked before it is decoded."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import MsgspecError, Raw
from msgspec.json import decode

from ...runtime.errors import RequestError
from ..core.work.thread_pool import Steps
from .json_shape import JsonShape, shape_of

MAX_DEPTH = 256
MAX_FIELDS = 1024
MAX_CONTAINERS = 1 << 17  # lists and objects
MAX_STRINGS = 1 << 18
MAX_VALUES = 1 << 21  # two million token ids
MAX_FIELD_BYTES = 128 * 1024  # of a field without an entry in `_FIELD_BYTES`
MAX_GRAMMAR_BYTES = 4 * 1024 * 1024  # a grammar has at most a million characters
MAX_TOOLS_BYTES = 4 * 1024 * 1024
MAX_TEMPLATE_KWARGS_BYTES = 64 * 1024
UNSCANNED_BYTES = 64 * 1024  # a smaller body has few values, so they are not counted

_GRAMMARS = (
    "response_format",
    "output_config",
    "output_format",
    "text",
    "structured_outputs",
    "regex",
    "choice",
    "json_schema",
    "grammar",
    "ebnf",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
_FIELD_BYTES: dict[str, int | None] = {
    "messages": None,
    "system": None,
    "instructions": None,
    "input": None,
    "items": None,
    "prompt": None,
    "tokens": None,
    "tools": MAX_TOOLS_BYTES,
    "chat_template_kwargs": MAX_TEMPLATE_KWARGS_BYTES,
    **dict.fromkeys(_GRAMMARS, MAX_GRAMMAR_BYTES),
}


def check_shape(body: bytes) -> Steps[None]:
    """Raises `RequestError` for JSON with too many values or levels."""
    if len(body) <= UNSCANNED_BYTES and body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    shapes = shape_of(body)
    for shape in shapes:
        _check(shape, body)
        yield


def _check(shape: JsonShape, body: bytes) -> None:
    if shape.depth > MAX_DEPTH:
        raise RequestError(
            f"The request's JSON is nested more than {MAX_DEPTH} levels deep.",
            code="invalid_json",
        )
    found = {
        "fields": (shape.fields, MAX_FIELDS),
        "lists and objects": (shape.containers, MAX_CONTAINERS),
        "strings": (shape.strings, MAX_STRINGS),
        "values": (shape.values, MAX_VALUES),
    }
    for things, (count, most) in found.items():
        if count > most:
            largest = _largest_field(body) if things != "fields" else None
            where = f", most of them in {largest}" if largest else ""
            raise RequestError(
                f"The request's JSON has more than {most:,} {things}{where}: send less in one request.",
                param=largest,
                code="invalid_json",
            )


def _largest_field(body: bytes) -> str | None:
    """The name of the field with the longest JSON; None if the body is not valid."""
    try:
        fields = decode(body, type=dict[str, Raw])
    except (MsgspecError, RecursionError):
        return None
    longest = max(fields, key=lambda name: memoryview(fields[name]).nbytes, default="")
    return longest or None


def check_field_sizes(fields: Mapping[str, Raw], known: tuple[str, ...]) -> None:
    """Raises `RequestError` naming the known field whose JSON is too long."""
    for name in known:
        most = _FIELD_BYTES.get(name, MAX_FIELD_BYTES)
        size = memoryview(fields[name]).nbytes if name in fields and most is not None else 0
        if most is not None and size > most:
            raise RequestError(
                f"{name} is {size} bytes of JSON, but may have at most {most}.",
                param=name,
                code="invalid_value",
            )
