"""Requests that are open while something happens to the server."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import httpx
from served import HELLO, PATIENCE, Served, eventually

ENDLESS: Any = {"messages": HELLO, "max_tokens": 30_000, "ignore_eos": True}


class Streaming:
    """A stream read on a thread. `events` are its data lines."""

    def __init__(self, served: Served) -> None:
        self.events: list[str] = []
        self._thread = threading.Thread(target=self._read, args=(served,))
        self._thread.start()
        eventually(lambda: len(self.events) > 3)

    def _read(self, served: Served) -> None:
        body = {"model": served.model, "stream": True, **ENDLESS}
        with httpx.stream("POST", f"{served.url}/v1/chat/completions", json=body, timeout=PATIENCE) as answer:
            self.events.extend(line for line in answer.iter_lines() if line)

    def end(self) -> list[str]:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.events


class Asking:
    """A request without a stream, answered on a thread."""

    def __init__(self, served: Served, **fields: Any) -> None:
        self.answer: httpx.Response | None = None
        self._body = {"model": served.model, **ENDLESS, **fields}
        self._thread = threading.Thread(target=self._ask, args=(served,))
        self._thread.start()

    def _ask(self, served: Served) -> None:
        with contextlib.suppress(httpx.TransportError):
            self.answer = httpx.post(f"{served.url}/v1/chat/completions", json=self._body, timeout=PATIENCE)

    def end(self) -> httpx.Response | None:
        """None if the connection broke."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.answer
