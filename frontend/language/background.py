"""One event loop in a thread, for the calls of all programs; threads for functions that wait for them."""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import functools
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")

EXIT_WAIT_S = 2.0

_starting = threading.Lock()
_last_work: set[Future[Any]] = set()


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="arbora-programs", daemon=True).start()
    atexit.register(_wait_for_last_work)
    return loop


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    with _starting:  # otherwise several threads could start a loop each
        loop = _loop()
    return asyncio.run_coroutine_threadsafe(work, loop)


def _begin_in_child() -> None:
    """Resets the state in a fork's child, which has no thread for the loop and no open work."""
    global _starting
    _starting = threading.Lock()
    _loop.cache_clear()
    _last_work.clear()


os.register_at_fork(after_in_child=_begin_in_child)


def wait_for_at_exit(work: Future[Any]) -> None:
    """At exit the interpreter waits for this work, at most `EXIT_WAIT_S`, because exiting would end its
    thread."""
    _last_work.add(work)
    work.add_done_callback(_last_work.discard)


def _wait_for_last_work() -> None:
    """Waits at most `EXIT_WAIT_S` for the work given to `wait_for_at_exit`, before or during this wait."""
    deadline = time.monotonic() + EXIT_WAIT_S
    while (open_work := list(_last_work)) and (left := deadline - time.monotonic()) > 0:
        wait(open_work, left)


def run_in_new_loop(work: Coroutine[Any, Any, T], instead: str) -> T:
    """Runs work in a new event loop. Raises RuntimeError, with the advice `instead`, if a loop already
    runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise RuntimeError(f"an event loop is running here: write `{instead}` for an async program.")


def start_thread(function: Callable[[], T]) -> Future[T]:
    """Runs a function in a thread of its own, with the context variables of the calling thread."""
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
