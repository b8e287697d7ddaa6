"""Checks whether this process can accept another connection."""

from __future__ import annotations

import os
import resource

from ...runtime.errors import RequestError


def check_descriptors() -> None:
    """Raises a 503 `RequestError` if no file descriptor is left, because new connections would fail."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise RequestError(
            f"All {most:,} file descriptors are in use, so that new connections fail. Close connections, or "
            "start the server with a higher limit (ulimit -n).",
            status=503,
            code="out_of_descriptors",
        ) from error
