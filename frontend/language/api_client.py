"""A client of servers with OpenAI's API, on asyncio. It sends each request once."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

CONNECT_S = 10.0
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_JSON = {"Content-Type": "application/json"}


class ApiError(Exception):
    """The server refused a request, or a reply failed. The text comes from the server. `status` is the HTTP
    status of a refusal, `retry_after_s` the pause that the server asks for.
    """

    def __init__(
        self, message: str, code: str = "", status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.retry_after_s = retry_after_s


class Usage(msgspec.Struct, frozen=True):
    """Numbers of tokens: of the prompt, of its part that was found in the cache, and of the reply."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class CallPiece(msgspec.Struct, frozen=True):
    """A part of tool call number `index`."""

    index: int
    id: str
    name: str
    arguments: str


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a streamed reply. The last pieces have the finish reason, the usage and the explanation."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[CallPiece, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    explanation: dict[str, Any] | None = None
    """The reasons why tokens of the prompt were not in the cache."""


class ApiClient:
    """One server. `url` may end in /v1."""

    def __init__(
        self,
        url: str,
        api_key: str | None,
        timeout: float | None = None,
        connections: int | None = None,
        kept_connections: int = 0,
    ) -> None:
        """`timeout` in seconds; None for no limit. At most `kept_connections` idle connections stay open,
        because some servers close them silently, which loses the next request."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(timeout, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=kept_connections),
            verify=ssl.create_default_context() if url.startswith("https:") else False,
            trust_env=urlsplit(url).hostname not in LOOPBACK,  # no proxy for a server on this machine
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON of the answer. Raises ApiError, or httpx.TransportError without an answer."""
        content = None if body is None else msgspec.json.encode(body)
        answer = await self._http.request(method, path, content=content, headers=_JSON)
        if not answer.is_success:
            raise _refusal(answer)
        try:
            return msgspec.json.decode(answer.content)
        except msgspec.DecodeError:
            raise ApiError(
                f"{self.url} answers {path} with {answer.text[:60]!r}, which is no JSON: is this a server "
                "with OpenAI's API?"
            ) from None

    async def pieces(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Piece, None]:
        """Yields the pieces of a streamed reply. Raises the errors of `request`."""
        content = msgspec.json.encode({**body, "stream": True})
        async with self._http.stream("POST", path, content=content, headers=_JSON) as answer:
            if not answer.is_success:
                await answer.aread()
                raise _refusal(answer)
            async for line in answer.aiter_lines():
                data = line.removeprefix("data:").strip()
                if line.startswith("data:") and data != "[DONE]":
                    yield _read_event(data)


def read_usage(answer: Mapping[str, Any]) -> Usage | None:
    """The usage in an answer or event."""
    usage = answer.get("usage")
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    # Older versions of llama.cpp tell the cached tokens only among their timings.
    cached = details.get("cached_tokens", (answer.get("timings") or {}).get("cache_n"))
    return Usage(usage["prompt_tokens"], cached or 0, usage["completion_tokens"])


def _read_event(data: str) -> Piece:
    """The piece in the data of one event. Raises ApiError."""
    try:
        return read_piece(msgspec.json.decode(data, type=dict[str, Any]))
    except msgspec.DecodeError as error:
        raise ApiError(f"an event of the reply is no JSON object: {error}") from error


def read_piece(answer: Mapping[str, Any]) -> Piece:
    """The piece in an event, or the whole reply in an answer, of a chat or a completion. Raises ApiError."""
    try:
        if error := answer.get("error"):
            raise ApiError(str(error.get("message", error)))
        choice: dict[str, Any] = next(iter(answer.get("choices") or ()), {})
        delta = choice.get("delta", choice.get("message", choice))
        return Piece(
            text=delta.get("content", choice.get("text")) or "",
            reasoning=delta.get("reasoning") or delta.get("reasoning_content") or "",
            tool_calls=tuple(_read_call(*each) for each in enumerate(delta.get("tool_calls") or ())),
            finish_reason=choice.get("finish_reason"),
            usage=read_usage(answer),
            explanation=answer.get("cache_explanation"),
        )
    except (LookupError, TypeError, AttributeError) as malformed:
        raise ApiError(f"the reply does not have the form of OpenAI's API: {malformed!r}") from malformed


def _read_call(place: int, delta: Mapping[str, Any]) -> CallPiece:
    """The call at `place` in a list of calls. Only calls in events have their own number."""
    function = delta.get("function") or {}
    return CallPiece(
        index=delta.get("index", place),
        id=delta.get("id") or "",
        name=function.get("name") or "",
        arguments=function.get("arguments") or "",
    )


def _refusal(answer: httpx.Response) -> ApiError:
    status = answer.status_code
    try:
        retry_after = float(answer.headers["retry-after"])
    except (KeyError, ValueError):
        retry_after = None
    try:
        error = msgspec.json.decode(answer.content)["error"]
        message, code = str(error["message"]), str(error.get("code"))
    except (msgspec.DecodeError, LookupError, TypeError):
        message, code = answer.content.decode(errors="replace")[:500], ""
    return ApiError(f"status {status}: {message}", code, status, retry_after)
