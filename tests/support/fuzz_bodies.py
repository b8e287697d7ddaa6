"""Requests by number, as bytes: equal seeds and numbers give equal requests."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from fuzz_mutations import Headers, change_bytes, change_headers, change_values
from fuzz_requests import request

_MAX_BYTES = 1 << 20  # larger bodies belong to the hostile corpus
_PLAIN: Headers = [("Content-Type", "application/json")]


@dataclass(frozen=True)
class Case:
    """One request. `kind` says how it came about: valid, values, bytes or headers."""

    number: int
    kind: str
    method: str
    path: str
    headers: Headers
    body: bytes | None

    def __str__(self) -> str:
        body = b"" if self.body is None else self.body
        return f"case {self.number} ({self.kind}): {self.method} {self.path} {body[:300]!r}"


def case(seed: int, number: int) -> Case:
    rng = random.Random(f"{seed} {number}")
    method, path, fields = request(rng)
    if fields is None:
        headers = change_headers(rng, []) if rng.random() < 0.3 else []
        return Case(number, "no body", method, path, headers, None)
    kind = rng.choices(("valid", "values", "bytes", "headers"), (30, 45, 20, 5))[0]
    headers = list(_PLAIN)
    if kind == "values":
        fields = change_values(rng, fields)
    body = _encoded(rng, fields)
    if len(body) > _MAX_BYTES:
        body = body[:_MAX_BYTES]
    if kind == "bytes":
        body = change_bytes(rng, body)
    if kind == "headers":
        headers = change_headers(rng, headers)
    return Case(number, kind, method, path, headers, body)


def _encoded(rng: random.Random, fields: object) -> bytes:
    """JSON as clients write it: with escapes or in UTF-8, in which half a surrogate pair is not allowed."""
    text = json.dumps(fields, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, None, 1)))
    return text.encode("utf-8", "surrogatepass")
