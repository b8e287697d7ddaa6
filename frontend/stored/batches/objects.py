"""The objects of OpenAI's files and batches, which are also the JSON that is stored."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]


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


class LineError(Struct, frozen=True):
    """A mistake in an input file. `line` counts from 1; None: the mistake is not in a line."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class Errors(Struct):
    data: list[LineError]
    object: str = "list"


class RequestCounts(Struct):
    total: int
    completed: int
    failed: int


class BatchObject(Struct, kw_only=True):
    """OpenAI's object of a batch. Times are in seconds since 1970."""

    id: str
    object: str = "batch"
    endpoint: str
    model: str
    errors: Errors | None = None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class StoredBatch(BatchObject, kw_only=True):
    """A stored batch. `owner` is the hash of the API key, or empty. Output is kept for `output_seconds`."""

    owner: str
    output_seconds: int
