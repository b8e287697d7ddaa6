"""Rows of the database, and the objects of OpenAI's API that are made of them."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

import msgspec
from msgspec import Raw, Struct

from .schema import OPEN

FileState = Literal["incomplete", "complete", "deleted"]
Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]


class FileRecord(Struct, frozen=True):
    id: str
    owner: str
    purpose: str
    filename: str
    bytes: int
    created_at: int
    expires_at: int
    state: FileState


class LineError(Struct, frozen=True):
    """A mistake in an input file. `line` counts from 1; None: the mistake is not in a line."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class BatchRecord(Struct, frozen=True, kw_only=True):
    """`owner` is the hash of the API key, empty without keys. `metadata` and `errors` are JSON."""

    id: str
    owner: str
    model: str
    endpoint: str
    completion_window: str
    input_file: str
    output_seconds: int
    metadata: str | None
    status: Status
    errors: str | None
    output_file: str | None
    error_file: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    total: int
    completed: int
    failed: int
    result_bytes: int
    runner: str
    lease_until: float

    @property
    def is_open(self) -> bool:
        return self.status in OPEN


class FileObject(Struct, kw_only=True):
    id: str
    object: str = "file"
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str
    status: str = "processed"
    status_details: None = None


class FileDeleted(Struct):
    id: str
    object: str = "file"
    deleted: bool = True


class RequestCounts(Struct):
    total: int
    completed: int
    failed: int


class Errors(Struct):
    data: list[LineError]
    object: str = "list"


class BatchObject(Struct, kw_only=True):
    id: str
    object: str = "batch"
    endpoint: str
    model: str
    errors: Errors | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: Raw


T = TypeVar("T", FileObject, BatchObject)


class Page(Struct, Generic[T]):
    """One page of a list."""

    data: list[T]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


_SAME_NAMES = {*BatchObject.__struct_fields__} & {*BatchRecord.__struct_fields__} - {"errors", "metadata"}


def file_object(record: FileRecord) -> FileObject:
    return FileObject(
        id=record.id,
        bytes=record.bytes,
        created_at=record.created_at,
        expires_at=record.expires_at,
        filename=record.filename,
        purpose=record.purpose,
    )


def batch_object(record: BatchRecord) -> BatchObject:
    found = None if record.errors is None else msgspec.json.decode(record.errors, type=list[LineError])
    has_files = not record.is_open
    return BatchObject(
        errors=None if found is None else Errors(found),
        input_file_id=record.input_file,
        output_file_id=record.output_file if has_files else None,
        error_file_id=record.error_file if has_files else None,
        request_counts=RequestCounts(record.total, record.completed, record.failed),
        metadata=Raw((record.metadata or "null").encode()),
        **{name: getattr(record, name) for name in _SAME_NAMES},
    )


def page_of(objects: list[T], has_more: bool) -> Page[T]:
    first, last = (objects[0].id, objects[-1].id) if objects else (None, None)
    return Page(objects, first, last, has_more)
