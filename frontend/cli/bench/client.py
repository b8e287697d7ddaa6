"""A streaming client of a server with OpenAI's API that notes when text arrived."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from ....runtime.errors import ConfigError
from ..server_option import no_answer


@dataclass
class Reply:
    """What a request got. Times are in seconds since it was sent. `arrivals` has the time of each read from
    the connection that brought text; one read may bring several tokens."""

    text: str = ""
    arrivals: list[float] = field(default_factory=list)
    finished: float = 0.0
    finish_reason: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    @property
    def ttft(self) -> float:
        return self.arrivals[0] if self.arrivals else self.finished

    @property
    def gaps(self) -> list[float]:
        return [late - early for early, late in zip(self.arrivals, self.arrivals[1:], strict=False)]


class Client:
    """One server. `model` is the first that it lists, with a context of so many tokens if the server says."""

    def __init__(self, url: str, api_key: str = "none", timeout: float = 600.0) -> None:
        # A connection for each request: some servers close idle ones without a word, and the request is lost.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        headers = {"Authorization": f"Bearer {api_key}"}
        base = url.rstrip("/").removesuffix("/v1")
        self._http = httpx.AsyncClient(base_url=base, timeout=timeout, limits=limits, headers=headers)
        self.model = ""
        self.context: int | None = None

    async def open(self) -> None:
        """Finds the model. Raises ConfigError if no server answers."""
        try:
            answer = (await self._http.get("/v1/models")).raise_for_status()
            listed = answer.json()["data"][0]
            self.model, self.context = listed["id"], listed.get("max_model_len")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError) as error:
            await self.close()
            if isinstance(error, httpx.ConnectError):
                raise no_answer(str(self._http.base_url), error) from None
            if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 401:
                raise ConfigError(
                    f"the server at {self._http.base_url} asks for an API key that it knows: give it with "
                    "--api-key KEY or in ARBORA_API_KEY."
                ) from None
            reason = str(error).rstrip(".")
            raise ConfigError(
                f"no server at {self._http.base_url} lists a model: {reason}. Start one, or name another "
                "with --url."
            ) from None

    async def close(self) -> None:
        await self._http.aclose()

    async def count_tokens(self, text: str) -> int:
        answer = await self._tokenize({"model": self.model, "prompt": text})
        if "count" in answer:
            return int(answer["count"])
        return len((await self._tokenize({"content": text}))["tokens"])  # llama.cpp's form

    async def template_tokens(self) -> int:
        """The tokens that the chat template adds to a message; 0 if the server does not say."""
        text = "a"
        message = {"role": "user", "content": text}
        try:
            answer = await self._tokenize({"model": self.model, "messages": [message]})
        except httpx.HTTPStatusError:
            return 0
        return max(0, int(answer["count"]) - await self.count_tokens(text)) if "count" in answer else 0

    async def _tokenize(self, body: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = (await self._http.post("/tokenize", json=body)).raise_for_status().json()
        return answer

    async def chat(self, messages: list[dict[str, str]], **options: Any) -> Reply:
        """Streams one reply; an error is stored in it, not raised."""
        body = {
            "model": self.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **options,
        }
        reply = Reply()
        clock = _ReadClock()
        try:
            await self._stream(body, reply, clock)
        except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError) as error:
            reply.error = repr(error)
        reply.finished = time.perf_counter() - clock.started
        if reply.finish_reason is None and reply.error is None:
            reply.error = "the stream ended without a finish reason"
        return reply

    async def _stream(self, body: dict[str, Any], reply: Reply, clock: _ReadClock) -> None:
        async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                said = (await response.aread()).decode(errors="replace")
                reply.error = f"{response.status_code}: {said[:500]}"
                return
            async for line in response.aiter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    _take(reply, json.loads(line[6:]), clock.now())


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


def _take(reply: Reply, event: dict[str, Any], now: float) -> None:
    if event.get("error"):
        reply.error = str(event["error"])
    for choice in event.get("choices", ()):
        text = choice["delta"].get("content")
        if text:
            reply.text += text
            if now not in reply.arrivals[-1:]:
                reply.arrivals.append(now)
        reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
    usage = event.get("usage")
    if usage:
        reply.prompt_tokens = usage["prompt_tokens"]
        reply.output_tokens = usage["completion_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        # llama.cpp's older versions tell it among their timings only.
        cached = details.get("cached_tokens", (event.get("timings") or {}).get("cache_n"))
        reply.cached_tokens = cached or 0
