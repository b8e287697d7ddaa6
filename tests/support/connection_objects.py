"""Counts the objects that belong to HTTP connections, to see when they are freed."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from arbora.frontend.http.server.connection import Connection
from arbora.frontend.http.server.exchange import Exchange
from arbora.frontend.http.server.limited_transport import LimitedTransport

_KINDS = (Connection, Exchange, LimitedTransport)


def alive() -> int:
    """How many objects of connections there are in this process."""
    return sum(type(each) in _KINDS for each in gc.get_objects())


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Frees what waits for the garbage collector, and turns it off meanwhile."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
