"""Threads for llguidance. It can't be stopped: whoever waited long enough goes on without it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import TypeVar

from .host import HostCompiler
from .host_start import HostStart
from .lanes import Lanes

Made = TypeVar("Made")


class HostThreads:
    """Nothing is submitted before `start`."""

    def __init__(self, threads: int) -> None:
        self._lanes = Lanes("host-grammars", threads, threads - 1)
        self._compiler: Future[HostCompiler] = Future()

    def start(self, make: Callable[[], HostCompiler]) -> None:
        """Begins with the compiler, for which all others wait."""
        self._lanes.submit(0, lambda: self._make(make))

    def submit(self, size: int, compile_with: Callable[[HostCompiler], Made]) -> Future[Made]:
        """`size` is the grammar's number of characters."""
        return self._lanes.submit(size, lambda: compile_with(self._compiler.result()))

    def wait(self) -> None:
        """Until the compiler is there: large vocabularies take seconds, which are no grammar's fault."""
        self._compiler.exception()

    def close(self) -> None:
        """Waits for what has begun."""
        self._lanes.close()

    def _make(self, make: Callable[[], HostCompiler]) -> None:
        try:
            self._compiler.set_result(make())
        except Exception as error:  # for whoever waits for it
            self._compiler.set_exception(error)


class HostAttempt:
    """llguidance's attempt at one grammar: begun once, by whoever first wants it."""

    def __init__(self, begin: Callable[[], Future[HostStart]]) -> None:
        self._begin = begin
        self._lock = Lock()
        self._future: Future[HostStart] | None = None

    def begun(self) -> Future[HostStart]:
        with self._lock:
            if self._future is None:
                self._future = self._begin()
            return self._future

    def cancel(self) -> None:
        """Unless it runs."""
        with self._lock:
            if self._future is not None:
                self._future.cancel()
