"""Reads and checks an input file, and plans the order of its lines."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
from msgspec import Raw, Struct

from ...core.type_errors import json_mistake
from ...core.work.thread_pool import Steps
from ...http.body import MAX_BODY_BYTES
from .order import prefix_key
from .records import LineError

MOST_LINES = 50_000
MOST_ERRORS = 100  # that a batch shows
MOST_LINE_BYTES = MAX_BODY_BYTES + 4096
MOST_ID_CHARACTERS = 512
STEP_BYTES = 512 * 1024  # of the file, in one step


class PlannedLine(NamedTuple):
    """`number` counts from 1, blank lines too; `offset` and `size` are the bytes of the line in the file."""

    number: int
    offset: int
    size: int


class InputLine(Struct):
    custom_id: str | None = None
    method: str | None = None
    url: str | None = None
    body: Raw = Raw()


@dataclass
class Plan:
    """`lines` are in the order in which they run. A plan with errors can't run."""

    lines: list[PlannedLine] = field(default_factory=list)
    errors: list[LineError] = field(default_factory=list)
    wrong: int = 0


_decoder = msgspec.json.Decoder(InputLine)
_fields = msgspec.json.Decoder(dict[str, Raw])


def read_plan(path: Path, endpoint: str) -> Steps[Plan]:
    """The plan of a file, in steps that take milliseconds. Raises OSError."""
    plan = Plan()
    seen: set[bytes] = set()
    keys: dict[int, bytes] = {}
    count = read = 0
    with path.open("rb") as file:
        for planned, raw in _lines(file):
            count += 1
            if count > MOST_LINES:
                _add(plan, LineError("too_many_requests", f"The file has more than {MOST_LINES} requests."))
                break
            found = _checked(raw, planned, endpoint, seen)
            if isinstance(found, LineError):
                _add(plan, found)
            else:
                keys[planned.number] = prefix_key(found)
                plan.lines.append(planned)
            read += planned.size
            if read > STEP_BYTES:
                read = 0
                yield
    if not count:
        _add(plan, LineError("empty_file", "The file has no requests."))
    plan.lines.sort(key=lambda line: (keys[line.number], line.number))
    return plan


def parse_line(raw: bytes) -> InputLine:
    """A line that was checked before."""
    return _decoder.decode(raw.removeprefix(BOM_UTF8))


def _add(plan: Plan, error: LineError) -> None:
    plan.wrong += 1
    if len(plan.errors) < MOST_ERRORS:
        plan.errors.append(error)


def _lines(file: BinaryIO) -> Iterator[tuple[PlannedLine, bytes]]:
    """The lines that are not blank. Of a line that is too long it reads no more than the limit at a time."""
    number = offset = 0
    while raw := file.readline(MOST_LINE_BYTES + 1):
        number += 1
        size = len(raw)
        last = raw
        while not last.endswith(b"\n") and (last := file.readline(MOST_LINE_BYTES)):
            size += len(last)
        raw = raw.removeprefix(BOM_UTF8)  # also inside a file, where files were joined
        if raw.strip():
            yield PlannedLine(number, offset, size), raw
        offset += size


def _checked(raw: bytes, planned: PlannedLine, endpoint: str, seen: set[bytes]) -> dict[str, Raw] | LineError:
    """The body's fields, or the line's first mistake. Adds the hash of its id to `seen`."""

    def wrong(code: str, message: str, param: str | None = None) -> LineError:
        return LineError(code, message, param, planned.number)

    if planned.size > MOST_LINE_BYTES:
        return wrong("line_too_long", f"The line has more than {MOST_LINE_BYTES} bytes.")
    try:
        line = _decoder.decode(raw)
        fields = _fields.decode(line.body) if line.body else None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        problem = f"The line is not a JSON object of a request: {json_mistake(raw, error)}."
        return wrong("invalid_json_line", problem)
    for name, value in (("custom_id", line.custom_id), ("method", line.method), ("url", line.url)):
        if not value:
            return wrong("missing_required_parameter", f"The line has no {name}.", name)
    if fields is None:
        return wrong("missing_required_parameter", "The line has no body.", "body")
    name = line.custom_id or ""
    if len(name) > MOST_ID_CHARACTERS:
        return wrong(
            "invalid_custom_id", f"custom_id has more than {MOST_ID_CHARACTERS} characters.", "custom_id"
        )
    if line.method != "POST":
        return wrong("invalid_method", f"method is {line.method!r:.50}, but must be 'POST'.", "method")
    if line.url != endpoint:
        return wrong(
            "mismatched_endpoint",
            f"url is {line.url!r:.100}, but the batch's endpoint is {endpoint!r}.",
            "url",
        )
    if bytes(fields.get("stream", b"false")).strip() not in (b"false", b"null"):
        return wrong("invalid_request", "A batch has no streams: leave stream out.", "body.stream")
    digest = blake2b(name.encode(errors="surrogatepass"), digest_size=16).digest()
    if digest in seen:
        return wrong(
            "duplicate_custom_id", f"custom_id is {name!r:.100}, as in an earlier line.", "custom_id"
        )
    seen.add(digest)
    return fields
