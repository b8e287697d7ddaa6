"""A streaming client of a server with OpenAI's API that notes when text arrived."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx

from ...language.api_client import ApiClient, ApiError, Piece
from ..listed_models import list_models


@dataclass
class Reply:
    """The reply to one request. Times are in seconds since the request was sent. `arrivals` has the time of
    each read from the connection that brought text; one read may bring several tokens."""

    text: str = ""
    arrivals: list[float] = field(default_factory=list)
    finished: float = 0.0
    finish_reason: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    def take(self, piece: Piece, now: float) -> None:
        if piece.text:
            self.text += piece.text
            if now not in self.arrivals[-1:]:
                self.arrivals.append(now)
        self.finish_reason = piece.finish_reason or self.finish_reason
        if piece.usage is not None:
            self.prompt_tokens = piece.usage.prompt_tokens
            self.cached_tokens = piece.usage.cached_tokens
            self.output_tokens = piece.usage.completion_tokens

    @property
    def ttft(self) -> float:
        return self.arrivals[0] if self.arrivals else self.finished

    @property
    def gaps(self) -> list[float]:
        return [late - early for early, late in zip(self.arrivals, self.arrivals[1:], strict=False)]


class Client:
    """One server. `model` is the first model that it lists; its context is in tokens, None if unknown."""

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 600.0) -> None:
        self._client = ApiClient(url, api_key or "none", timeout)
        self._has_key = api_key is not None
        self.model = ""
        self.context: int | None = None

    async def open(self) -> None:
        """Finds the model. Raises ConfigError if no server answers."""
        listed = (await list_models(self._client, self._has_key))[0]
        self.model, self.context = listed["id"], listed.get("max_model_len")

    async def close(self) -> None:
        await self._client.close()

    async def count_tokens(self, text: str) -> int:
        answer = await self._tokenize({"model": self.model, "prompt": text})
        if "count" in answer:
            return int(answer["count"])
        return len((await self._tokenize({"content": text}))["tokens"])  # as llama.cpp answers

    async def template_tokens(self) -> int:
        """The tokens that the chat template adds to a message; 0 if the server does not say."""
        text = "a"
        message = {"role": "user", "content": text}
        try:
            answer = await self._tokenize({"model": self.model, "messages": [message]})
        except ApiError:
            return 0
        return max(0, int(answer["count"]) - await self.count_tokens(text)) if "count" in answer else 0

    async def _tokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = await self._client.request("POST", "/tokenize", body)
        return answer

    async def chat(self, messages: list[dict[str, str]], **options: Any) -> Reply:
        """Streams one reply; an error is stored in it, not raised."""
        body = {
            "model": self.model,
            "messages": messages,
            "stream_options": {"include_usage": True},
            **options,
        }
        reply = Reply()
        clock = _ReadClock()
        try:
            async with aclosing(self._client.pieces("/v1/chat/completions", body)) as pieces:
                async for piece in pieces:
                    reply.take(piece, clock.now())
        except ApiError as error:
            reply.error = str(error)
        except httpx.HTTPError as error:
            reply.error = repr(error)
        reply.finished = time.perf_counter() - clock.started
        if reply.finish_reason is None and reply.error is None:
            reply.error = "the stream ended without a finish reason"
        return reply


class _ReadClock:
    """Gives all events of one read from the connection the same time, in seconds since the clock was made.

    The client handles the events of one read in a single turn of the event loop, so the clock stands still
    until the next turn.
    """

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self._read: float | None = None

    def now(self) -> float:
        if self._read is None:
            self._read = time.perf_counter() - self.started
            asyncio.get_running_loop().call_soon(self._forget)
        return self._read

    def _forget(self) -> None:
        self._read = None
