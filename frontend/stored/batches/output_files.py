"""The lines of output and error files, and the files themselves."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from heapq import merge
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ...core.work.thread_pool import Steps
from .batch_store import FAILURE
from .endpoints import LineReply
from .input_file import PlannedLine, parse_line, read_line

STEP_BYTES = 1024 * 1024


class LineResponse(Struct):
    status_code: int
    request_id: str
    body: Raw


class LineFailure(Struct):
    code: str
    message: str


class OutputLine(Struct, kw_only=True):
    """A line of an output or error file. In error files `line` is the number of the input line."""

    id: str
    custom_id: str
    response: LineResponse | None = None
    error: LineFailure | None = None
    line: int | UnsetType = UNSET


class OutputSizes(NamedTuple):
    """The bytes of a batch's `output` and `errors` files. `failed` is the number of lines in the latter."""

    output: int
    errors: int
    failed: int


def encode_answer(number: int, custom_id: str, reply: LineReply) -> bytes:
    response = LineResponse(reply.status, reply.request_id, Raw(reply.body))
    line = UNSET if reply.status < 400 else number
    return _encode(OutputLine(id=_make_id(), custom_id=custom_id, response=response, line=line))


def encode_failure(number: int, custom_id: str, failure: LineFailure) -> bytes:
    return _encode(OutputLine(id=_make_id(), custom_id=custom_id, error=failure, line=number))


def write_files(
    database: Path,
    batch: str,
    input_file: Path | None,
    unfinished: Iterable[PlannedLine],
    failure: LineFailure,
    output: Path,
    errors: Path,
) -> Steps[OutputSizes]:
    """Writes a batch's results in the order of its lines, and `failure` for the unfinished lines.

    A file without lines is removed, and so are both if the writing fails or is given up.
    """
    lines = _merge(_read_results(database, batch), _make_failures(input_file, unfinished, failure))
    try:
        return (yield from _write_lines(lines, output, errors))
    except BaseException:
        for path in (output, errors):
            path.unlink(missing_ok=True)
        raise


def _write_lines(lines: Iterator[tuple[int, int, bytes]], output: Path, errors: Path) -> Steps[OutputSizes]:
    """Writes `lines`, each with its number and whether it failed."""
    sizes = [0, 0]
    failed = written = 0
    with _create_file(output) as good, _create_file(errors) as bad:
        for _, is_failed, line in lines:
            (bad if is_failed else good).write(line + b"\n")
            sizes[is_failed] += len(line) + 1
            failed += is_failed
            written += len(line)
            if written > STEP_BYTES:
                written = 0
                yield
        for file in (good, bad):
            file.flush()
            yield
            os.fsync(file.fileno())
    for path, size in zip((output, errors), sizes, strict=True):
        if not size:
            path.unlink()
    return OutputSizes(sizes[0], sizes[1], failed)


def _read_results(database: Path, batch: str) -> Iterator[tuple[int, int, bytes]]:
    """Yields the number of each line with a result, whether it failed, and its output line, in order."""
    with closing(
        sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    ) as connection:
        yield from connection.execute(
            "SELECT place, parts.kind = ?, parts.body FROM parts JOIN records ON number = record "
            "WHERE records.id = ? ORDER BY place",
            (FAILURE, batch),
        )


def _make_failures(
    input_file: Path | None, unfinished: Iterable[PlannedLine], failure: LineFailure
) -> Iterator[tuple[int, int, bytes]]:
    if input_file is None:
        return
    for line in sorted(unfinished):
        custom_id = parse_line(read_line(input_file, line)).custom_id or ""
        yield line.number, 1, encode_failure(line.number, custom_id, failure)


def _merge(
    results: Iterator[tuple[int, int, bytes]], failures: Iterator[tuple[int, int, bytes]]
) -> Iterator[tuple[int, int, bytes]]:
    """Merges both, sorted by line number. A line with a result has no failure."""
    by_number = groupby(merge(results, failures, key=itemgetter(0)), itemgetter(0))
    return (next(found) for _, found in by_number)


def _create_file(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb")


def _encode(line: OutputLine) -> bytes:
    return msgspec.json.encode(line)


def _make_id() -> str:
    return f"batch_req_{secrets.token_hex(16)}"
