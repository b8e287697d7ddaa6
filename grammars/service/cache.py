"""An LRU cache of compiled grammars in memory, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

ENTRY_BYTES = 4096  # bytes counted for each grammar in addition to its own size


class Sized(Protocol):
    @property
    def host_nbytes(self) -> int: ...


Source = TypeVar("Source")
Made = TypeVar("Made", bound=Sized)


class GrammarCache(Generic[Source, Made]):
    """Keeps futures by source, and evicts only completed ones. For one thread.

    `on_done` is called from any thread, when a future completes.
    """

    def __init__(self, max_bytes: int, on_done: Callable[[], None]) -> None:
        self._max_bytes = max_bytes
        self._on_done = on_done
        self._futures: OrderedDict[Source, Future[Made]] = OrderedDict()
        self._sizes: dict[Source, int] = {}
        self._done: deque[tuple[Source, Future[Made]]] = deque()
        """futures that completed in other threads and are not counted yet"""
        self._nbytes = 0

    def get(self, source: Source, start: Callable[[], Future[Made]]) -> Future[Made]:
        """Returns the source's future; if there is none, starts one."""
        future = self._futures.get(source)
        if future is None:
            future = self._futures[source] = start()
            future.add_done_callback(lambda done: self._note(source, done))
        self._futures.move_to_end(source)
        return future

    def forget(self, source: Source, future: Future[Made]) -> None:
        """Drops the source's future."""
        if self._futures.get(source) is future:
            self._drop(source)

    def take_done(self) -> list[tuple[Source, Future[Made]]]:
        """The futures completed since the last call. Counts their bytes, and evicts the least recently
        used."""
        done = [self._done.popleft() for _ in range(len(self._done))]
        for source, future in done:
            if self._futures.get(source) is future and not future.cancelled():
                failed = future.exception() is not None
                self._sizes[source] = ENTRY_BYTES + (0 if failed else future.result().host_nbytes)
                self._nbytes += self._sizes[source]
        while self._nbytes > self._max_bytes:
            self._drop(next(source for source in self._futures if source in self._sizes))
        return done

    def _note(self, source: Source, future: Future[Made]) -> None:
        self._done.append((source, future))
        self._on_done()

    def _drop(self, source: Source) -> None:
        del self._futures[source]
        self._nbytes -= self._sizes.pop(source, 0)
