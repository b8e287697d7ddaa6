"""The time limit of a request that generates, from the arrival of its headers to the end of its answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from ...runtime.errors import RequestError
from ..core.replica.generation import Generation


class TimeLimit:
    """A limit of `seconds`, which begin now. None means no limit."""

    def __init__(self, seconds: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._end = None if seconds is None else self._loop.time() + seconds

    @contextlib.asynccontextmanager
    async def of_preparation(self) -> AsyncIterator[None]:
        """Cancels the work inside at the limit, and raises RequestError."""
        limit = asyncio.timeout_at(self._end)
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if limit.expired():
                raise self._error() from error
            raise

    def end_later(self, generation: Generation) -> asyncio.TimerHandle | None:
        """Ends the generation at the limit: its choices are aborted, and its consumer gets a RequestError.

        The caller cancels the timer once the answer is sent. None without a limit.
        """
        return None if self._end is None else self._loop.call_at(self._end, generation.end, self._error())

    def _error(self) -> RequestError:
        return RequestError(
            f"The request took longer than this server's limit of {self._seconds:g} seconds. Ask for fewer "
            "tokens, or start the server with a longer --request-timeout.",
            status=504,
            code="deadline_exceeded",
        )
