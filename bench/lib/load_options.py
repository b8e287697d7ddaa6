"""What the scenarios of `load.py` share: their options and their requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sockets_client import Answer, Server, ask

PROMPTS = (
    "Invoice 4711 from",
    "The order of Anna Berg, who lives in",
    "Hello! Please tell me",
    "A report on",
)


@dataclass(frozen=True)
class Load:
    """The command line's options."""

    server: Server
    pid: int | None
    streams: int
    tokens: int
    seconds: float
    rounds: int
    in_flight: int
    connections: int
    slow: int
    rate: float | None

    def body(self, number: int, tokens: int | None = None) -> dict[str, Any]:
        return {
            "model": self.server.model,
            "prompt": f"{PROMPTS[number % len(PROMPTS)]} {number}:",
            "max_tokens": tokens or self._length(number),
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def _length(self, number: int) -> int:
        """A random length from half of `tokens` to three halves, so that replies end at different times."""
        return self.tokens // 2 + (number * 37) % (self.tokens + 1)

    async def stream(self, number: int, tokens: int | None = None) -> Answer:
        return await ask(self.server, "POST", "/v1/completions", self.body(number, tokens))
