"""Reads and checks the input file of a batch, and plans the order of its lines.

Lines whose prompts begin alike run one after another.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zlib import crc32

import msgspec
from msgspec import MsgspecError, Raw, Struct

from ...core.type_errors import json_mistake
from ...core.work.thread_pool import Steps
from ...http.body import MAX_BODY_BYTES
from .objects import LineError

MAX_LINES = 50_000
MAX_ERRORS = 100
"""Maximum mistakes that a batch shows."""
MAX_LINE_BYTES = MAX_BODY_BYTES + 4096
MAX_ID_CHARACTERS = 512
STEP_BYTES = 512 * 1024
"""Bytes of the file that are read in one step."""
CHUNK_BYTES = 256
"""Bytes of a prompt that give one hash of its sort key."""
HASH_BYTES = 4
MAX_CHUNKS = 4096
"""Maximum hashes of a sort key, which so has at most 16 KiB."""
_PROMPT_FIELDS = ("cache_salt", "tools", "system", "instructions", "messages", "input", "prompt")
"""The fields from which a prompt is rendered, in their order in the prompt."""


class PlannedLine(NamedTuple):
    """A line to run. `number` counts from 1, with blank lines. `offset` and `size` are bytes in the file."""

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
    """The lines of a batch, in the order in which they run. A plan with errors can't run."""

    lines: list[PlannedLine] = field(default_factory=list)
    errors: list[LineError] = field(default_factory=list)
    wrong: int = 0


_decoder = msgspec.json.Decoder(InputLine)
_fields = msgspec.json.Decoder(dict[str, Raw])


def read_plan(path: Path, endpoint: str) -> Steps[Plan]:
    """The plan of a file whose lines name this endpoint, in steps that take milliseconds. Raises OSError."""
    plan = Plan()
    seen: set[bytes] = set()
    keys: dict[int, bytes] = {}
    count = read = 0
    with path.open("rb") as file:
        for planned, raw in _lines(file):
            count += 1
            if count > MAX_LINES:
                _add(plan, LineError("too_many_requests", f"The file has more than {MAX_LINES} requests."))
                break
            found = _check_line(raw, planned, endpoint, seen)
            if isinstance(found, LineError):
                _add(plan, found)
            else:
                keys[planned.number] = make_sort_key(found)
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
    """Parses a line that was checked before."""
    return _decoder.decode(raw.removeprefix(BOM_UTF8))


class InputLostError(Exception):
    """The input file was removed or cut while its batch ran."""


def read_line(path: Path, line: PlannedLine) -> bytes:
    """Reads a line. Raises `InputLostError`, or OSError if the file can't be read at the moment."""
    try:
        with path.open("rb") as file:
            file.seek(line.offset)
            raw = file.read(line.size)
    except FileNotFoundError:
        raise InputLostError from None
    if len(raw) != line.size:
        raise InputLostError
    return raw


def _add(plan: Plan, error: LineError) -> None:
    plan.wrong += 1
    if len(plan.errors) < MAX_ERRORS:
        plan.errors.append(error)


def _lines(file: BinaryIO) -> Iterator[tuple[PlannedLine, bytes]]:
    """Yields the lines that are not blank. Reads a too long line in parts, to save memory."""
    number = offset = 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        size = len(raw)
        last = raw
        while not last.endswith(b"\n") and (last := file.readline(MAX_LINE_BYTES)):
            size += len(last)
        raw = raw.removeprefix(BOM_UTF8)  # joined files may have a mark inside
        if raw.strip():
            yield PlannedLine(number, offset, size), raw
        offset += size


def _check_line(
    raw: bytes, planned: PlannedLine, endpoint: str, seen: set[bytes]
) -> dict[str, Raw] | LineError:
    """The body's fields, or the line's first mistake. Adds the hash of its id to `seen`."""

    def wrong(code: str, message: str, param: str | None = None) -> LineError:
        return LineError(code, message, param, planned.number)

    if planned.size > MAX_LINE_BYTES:
        return wrong("line_too_long", f"The line has more than {MAX_LINE_BYTES} bytes.")
    try:
        line = _decoder.decode(raw)
        fields = _fields.decode(line.body) if line.body else None
    except (MsgspecError, RecursionError, UnicodeDecodeError) as error:
        problem = f"The line is not a JSON object of a request: {json_mistake(raw, error)}."
        return wrong("invalid_json_line", problem)
    for name, value in (("custom_id", line.custom_id), ("method", line.method), ("url", line.url)):
        if not value:
            return wrong("missing_required_parameter", f"The line has no {name}.", name)
    if fields is None:
        return wrong("missing_required_parameter", "The line has no body.", "body")
    name = line.custom_id or ""
    if len(name) > MAX_ID_CHARACTERS:
        return wrong(
            "invalid_custom_id", f"custom_id has more than {MAX_ID_CHARACTERS} characters.", "custom_id"
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


def make_sort_key(fields: dict[str, Raw]) -> bytes:
    """The sort key of a request's body: the longer the common prefix of two prompts, the closer they sort.

    It has a hash for each chunk of the prompt's JSON. Sorting by the text itself would need the whole file in
    memory, and rendering and tokenizing would take as long as an API request each.
    """
    text = bytearray()
    for name in _PROMPT_FIELDS:
        if name in fields:
            text += _normalize(fields[name])
        text += b"\0"
    end = min(len(text), MAX_CHUNKS * CHUNK_BYTES)
    return b"".join(
        crc32(text[start : start + CHUNK_BYTES]).to_bytes(HASH_BYTES, "big")
        for start in range(0, end, CHUNK_BYTES)
    )


def _normalize(value: Raw) -> bytes:
    """JSON with sorted names and without spaces, so that equal texts of a chat are at equal places."""
    try:
        return msgspec.json.encode(msgspec.json.decode(value), order="sorted")
    except (MsgspecError, RecursionError):
        return bytes(value)
