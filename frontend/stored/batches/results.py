"""The lines of output and error files, and the files themselves."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ...core.work.thread_pool import Steps
from .call import Reply
from .plan import PlannedLine, parse_line

STEP_BYTES = 1024 * 1024


class LineResponse(Struct):
    status_code: int
    request_id: str
    body: Raw


class LineFailure(Struct):
    code: str
    message: str


class OutputLine(Struct, kw_only=True):
    """`line` is the number of the line in the input file, in error files."""

    id: str
    custom_id: str
    response: LineResponse | None = None
    error: LineFailure | None = None
    line: int | UnsetType = UNSET


class OutputFiles(NamedTuple):
    """The bytes of a batch's two files. `failed` counts the lines of the error file."""

    output: int
    errors: int
    failed: int


def answered(number: int, custom_id: str, reply: Reply) -> bytes:
    response = LineResponse(reply.status, reply.request_id, Raw(reply.body))
    line = UNSET if reply.status < 400 else number
    return _encoded(OutputLine(id=_new_id(), custom_id=custom_id, response=response, line=line))


def unanswered(number: int, custom_id: str, failure: LineFailure) -> bytes:
    return _encoded(OutputLine(id=_new_id(), custom_id=custom_id, error=failure, line=number))


class InputLostError(Exception):
    """The input file was removed or cut while its batch ran."""


def read_line(path: Path, line: PlannedLine) -> bytes:
    """Raises `InputLostError`, or OSError if the file can't be read at the moment."""
    try:
        with path.open("rb") as file:
            file.seek(line.offset)
            raw = file.read(line.size)
    except FileNotFoundError:
        raise InputLostError from None
    if len(raw) != line.size:
        raise InputLostError
    return raw


def write_files(
    database: Path,
    batch: str,
    input_file: Path | None,
    unfinished: Iterable[PlannedLine],
    failure: LineFailure,
    output: Path,
    errors: Path,
) -> Steps[OutputFiles]:
    """Writes a batch's results in the order of its lines, and `failure` for the unfinished lines.

    A file without lines is removed.
    """
    sizes = [0, 0]
    failed = written = 0
    lines = _merged(_results(database, batch), _failures(input_file, unfinished, failure))
    with _new_file(output) as good, _new_file(errors) as bad:
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
    return OutputFiles(sizes[0], sizes[1], failed)


def _results(database: Path, batch: str) -> Iterator[tuple[int, int, bytes]]:
    """The number of each line with a result, whether it failed, and the line to write; by number."""
    with closing(
        sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    ) as connection:
        yield from connection.execute(
            "SELECT number, failed, line FROM results WHERE batch = ? ORDER BY number", (batch,)
        )


def _failures(
    input_file: Path | None, unfinished: Iterable[PlannedLine], failure: LineFailure
) -> Iterator[tuple[int, int, bytes]]:
    if input_file is None:
        return
    for line in sorted(unfinished):
        custom_id = parse_line(read_line(input_file, line)).custom_id or ""
        yield line.number, 1, unanswered(line.number, custom_id, failure)


def _merged(
    results: Iterator[tuple[int, int, bytes]], failures: Iterator[tuple[int, int, bytes]]
) -> Iterator[tuple[int, int, bytes]]:
    """Both by number. A line with a result has no failure."""
    result, failure = next(results, None), next(failures, None)
    while result is not None or failure is not None:
        if failure is None or (result is not None and result[0] <= failure[0]):
            assert result is not None
            if failure is not None and result[0] == failure[0]:
                failure = next(failures, None)
            yield result
            result = next(results, None)
        else:
            yield failure
            failure = next(failures, None)


def _new_file(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb")


def _encoded(line: OutputLine) -> bytes:
    return msgspec.json.encode(line)


def _new_id() -> str:
    return f"batch_req_{secrets.token_hex(16)}"
