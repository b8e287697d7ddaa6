"""Mutations: of a body's values, of its bytes, and of the headers it is sent with."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

from fuzz_schemas import value

Headers = list[tuple[str, str]]
Place = tuple[Any, Any]  # an object or a list, and a name or a number in it
_DEPTHS = (5, 60, 300, 3000, 20_000)
_NUMBERS = (0, -1, 2**31, 2**63, -(2**63) - 1, 10**40, 1e308, -0.0, 0.1, 5.0, 5e0)
_STRINGS = (
    "",
    "\x00",
    "\ud800",
    "\udfff\ud800",
    "\ufeff",
    "\u202e\u2066\u200d",
    "é" * 5000,
    "<|im_end|>" * 50,
    "%s%n{0}{{",
    "../../etc/passwd",
    "a\u0300" * 300,
    "\U0010ffff",
)
_DEEPEST_CHANGE = 40
_LONG = 1000  # characters of a value that is not repeated many times


def change_values(rng: random.Random, body: Any) -> Any:
    """A copy of the body with one to three of its values or names changed."""
    changed = copy.deepcopy(body)
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        places = list(_places(changed))
        if not places:
            return rng.choice((None, [], "text", 1, True, [changed]))
        rng.choice(_VALUE_CHANGES)(rng, *rng.choice(places))
    return changed


def change_bytes(rng: random.Random, body: bytes) -> bytes:
    """The body with some of its bytes changed: most of the results are not valid JSON."""
    return rng.choice(_BYTE_CHANGES)(rng, body)


def change_headers(rng: random.Random, headers: Headers) -> Headers:
    kept = [(name, content) for name, content in headers if rng.random() < 0.9]
    return [*kept, *rng.sample(_HEADERS, rng.randint(1, 2))]


def nested(rng: random.Random) -> str:
    """JSON that nests up to 20,000 levels deep."""
    depth = rng.choice(_DEPTHS)
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}"), ('{"items":', "}"), ('{"anyOf":[', "]}")))
    return opening * depth + rng.choice(("1", "{}", "null")) + closing * depth


def _places(tree: Any, depth: int = 0) -> Iterator[Place]:
    if depth > _DEEPEST_CHANGE:
        return
    names: list[Any] = []
    if isinstance(tree, dict):
        names = list(tree)
    elif isinstance(tree, list):
        names = list(range(len(tree)))
    for name in names:
        yield tree, name
        yield from _places(tree[name], depth + 1)


def _delete(rng: random.Random, holder: Any, name: Any) -> None:
    del holder[name]


def _replace(rng: random.Random, holder: Any, name: Any) -> None:
    holder[name] = value(rng)


def _number(rng: random.Random, holder: Any, name: Any) -> None:
    holder[name] = rng.choice(_NUMBERS)


def _string(rng: random.Random, holder: Any, name: Any) -> None:
    holder[name] = rng.choice(_STRINGS)


def _as_text(rng: random.Random, holder: Any, name: Any) -> None:
    holder[name] = json.dumps(holder[name])


def _wrap(rng: random.Random, holder: Any, name: Any) -> None:
    holder[name] = rng.choice(([holder[name]], {"a": holder[name]}, [[holder[name]]]))


def _repeat(rng: random.Random, holder: Any, name: Any) -> None:
    """Copies are shallow, so that later changes inside one are in all of them."""
    times = 600 if len(str(holder[name])) < _LONG else 2
    holder[name] = [holder[name]] * rng.choice((2, 20, times))


def _rename(rng: random.Random, holder: Any, name: Any) -> None:
    if isinstance(holder, dict):
        holder[rng.choice((str(name).upper(), str(name) + " ", *_STRINGS[:6], "$ref"))] = holder.pop(name)
    else:
        holder.insert(0, holder[name])


def _deepen(rng: random.Random, holder: Any, name: Any) -> None:
    for _ in range(rng.choice((10, 150, 400))):
        holder[name] = rng.choice(([holder[name]], {"items": holder[name]}))


_VALUE_CHANGES: tuple[Callable[[random.Random, Any, Any], None], ...] = (
    _delete,
    _replace,
    _replace,
    _number,
    _number,
    _string,
    _string,
    _as_text,
    _wrap,
    _repeat,
    _rename,
    _deepen,
)


def _flip(rng: random.Random, body: bytes) -> bytes:
    changed = bytearray(body)
    for _ in range(min(len(changed), rng.randint(1, 8))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _cut(rng: random.Random, body: bytes) -> bytes:
    return body[: rng.randrange(len(body) + 1)]


def _insert(rng: random.Random, body: bytes) -> bytes:
    junk = (
        b"\x00",
        b"\xff\xfe",
        b"NaN",
        b"Infinity",
        b'"a":1,',
        b"//",
        b"\xed\xa0\x80",
        b",,",
        b"\xef\xbb\xbf",
    )
    place = rng.choice((0, len(body), rng.randrange(len(body) + 1)))
    return body[:place] + rng.choice(junk) + body[place:]


def _double(rng: random.Random, body: bytes) -> bytes:
    return rng.choice((body + body, body + b"\n" + body, body[:-1] + b"," + body[1:]))


def _with_nested(rng: random.Random, body: bytes) -> bytes:
    fields = (
        "tools",
        "json_schema",
        "chat_template_kwargs",
        "messages",
        "metadata",
        "unknown",
        "stop",
        "prompt",
    )
    return body[:-1] + b',"' + rng.choice(fields).encode() + b'":' + nested(rng).encode() + b"}"


def _other(rng: random.Random, body: bytes) -> bytes:
    return rng.choice(
        (b"", b"null", b"[]", b'"text"', b"{}", b" " * 100, b"\x80", body.decode().encode("utf-16"))
    )


def _digits(rng: random.Random, body: bytes) -> bytes:
    number = rng.choice((b"1" * 400, b"1e999", b"-" + b"9" * 60, b"0." + b"1" * 3000, b"1" * 5000))
    return body[:-1] + b',"max_tokens":' + number + b"}"


_BYTE_CHANGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _flip,
    _flip,
    _cut,
    _insert,
    _double,
    _with_nested,
    _with_nested,
    _other,
    _digits,
)
_HEADERS: Headers = [
    ("Content-Type", "text/plain"),
    ("Content-Type", "application/json; charset=latin-1"),
    ("Content-Type", "multipart/form-data"),
    ("Content-Type", "a" * 900),
    ("Content-Encoding", "gzip"),
    ("Authorization", "Bearer nope"),
    ("Authorization", "Basic Zm9v"),
    ("x-api-key", "nope"),
    ("Expect", "100-continue"),
    ("Upgrade", "h2c"),
    ("Accept", "text/event-stream"),
    ("Origin", "http://evil.example"),
    ("x-request-id", "é" * 20),
    ("Range", "bytes=0-1"),
    ("X-Forwarded-For", "127.0.0.1"),
    ("Cookie", "a=" + "b" * 2000),
    ("If-None-Match", "*"),
]
