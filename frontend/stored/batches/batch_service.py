"""The store of files and batches, for their endpoints."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ....runtime.errors import RequestError
from ...http.http_service import HttpService
from .batch_store import BatchStore


@dataclass(frozen=True)
class BatchService:
    """The store, None on a server that stores nothing, and the paths of `endpoints` that lines may call."""

    http: HttpService
    stored: BatchStore | None
    endpoints: Collection[str]

    def store(self) -> BatchStore:
        """The store of batches. Raises a 400 `RequestError` on a server that stores nothing."""
        if self.stored is None:
            raise RequestError(
                "This server stores no files and no batches (--data-dir off): start it with another "
                "--data-dir.",
                code="data_dir_off",
            )
        return self.stored
