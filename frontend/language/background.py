"""One event loop in a thread, for the calls of all programs; threads for functions that wait for them."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


_starting = threading.Lock()


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="arbora-programs", daemon=True).start()
    return loop


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    with _starting:  # functools.cache would let several threads start a loop each
        loop = _loop()
    return asyncio.run_coroutine_threadsafe(work, loop)


def start_thread(function: Callable[[], T]) -> Future[T]:
    """Runs a function in a thread of its own, with this one's context variables."""
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            value = context.run(function)
        except BaseException as error:
            result.set_exception(error)
        else:
            result.set_result(value)

    threading.Thread(target=run, name="arbora-program", daemon=True).start()
    return result
