"""A server with OpenAI's API, to which a chat sends its conversation."""

from __future__ import annotations

import contextlib
import http.client
import ssl
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ....runtime.errors import ConfigError
from ..server_option import no_answer, server_url

TIMEOUT_SECONDS = 600.0
OWNER = "arbora"


class ReplyError(Exception):
    """The server gave no answer or an incomplete one. The message and the code, if any, are the server's."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class KeyNeededError(ReplyError):
    """The server answers only requests with an API key that it knows."""


class Usage(msgspec.Struct, frozen=True):
    """Tokens of the prompt, of them found in the cache, and of the reply."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a streamed reply. The last pieces have the finish reason, the usage and the explanation."""

    reasoning: str = ""
    text: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None
    explanation: dict[str, Any] | None = None
    """why tokens of the prompt were not in the cache"""


class Model(msgspec.Struct, frozen=True):
    name: str
    is_arboras: bool
    """served by Arbora, which explains cache misses"""


class Server:
    """A server with OpenAI's API. `url` may end in /v1."""

    def __init__(self, url: str, api_key: str | None) -> None:
        parts = urlsplit(server_url(url))
        self._secure = parts.scheme == "https"
        self._address = parts.netloc.rpartition("@")[2]
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._url = url
        self._headers = {"Content-Type": "application/json"}
        self._has_key = bool(api_key)
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def models(self) -> list[Model]:
        """The served models, at least one. Raises ConfigError if the server lists none."""
        try:
            with self._request("GET", "/v1/models") as response:
                cards = msgspec.json.decode(response.read())["data"]
                listed = [Model(str(card["id"]), card.get("owned_by") == OWNER) for card in cards]
        except ssl.SSLCertVerificationError as error:
            raise ConfigError(
                f"the certificate of {self._url} is not trusted ({error.verify_message}). Set SSL_CERT_FILE "
                "to a PEM file with it or its issuer, or name the server with --url as the certificate does."
            ) from error
        except ConnectionResetError as error:
            hint = "" if self._secure else " If it uses TLS, its address begins with https://."
            raise ConfigError(
                f"the server at {self._url} closed the connection without a reply.{hint}"
            ) from error
        except OSError as error:
            raise no_answer(self._url, error) from error
        except KeyNeededError as error:
            asks = (
                "does not know this API key: give another"
                if self._has_key
                else "asks for an API key: give it"
            )
            raise ConfigError(
                f"the server at {self._url} {asks} with --api-key KEY or in ARBORA_API_KEY."
            ) from error
        except (ReplyError, http.client.HTTPException, msgspec.DecodeError, LookupError, TypeError) as error:
            raise ConfigError(f"the server at {self._url} does not tell its model: {error}") from error
        if not listed:
            raise ConfigError(f"the server at {self._url} lists no model.")
        return listed

    def reply(
        self, model: str, messages: Sequence[Mapping[str, str]], fields: Mapping[str, Any] | None = None
    ) -> Generator[Piece, None, None]:
        """Yields the pieces of the next turn; closing the iterator ends the request. Raises ReplyError.

        fields: more fields of the request
        """
        body = {"model": model, "messages": messages, "stream": True, **(fields or {})}
        try:
            with self._request("POST", "/v1/chat/completions", msgspec.json.encode(body)) as response:
                yield from _pieces(response)
        except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
            raise ReplyError(f"the connection broke: {error}") from error

    @contextlib.contextmanager
    def _request(
        self, method: str, path: str, body: bytes | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        connect = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = connect(self._address, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, self._path + path, body, self._headers)
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise _refusal(response.status, response.read())
            yield response
        finally:
            connection.close()


def _pieces(lines: http.client.HTTPResponse) -> Iterator[Piece]:
    """The pieces in a stream of server-sent events."""
    for line in lines:
        data = line.strip().removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            continue
        event: Any = msgspec.json.decode(data)
        if "error" in event:
            raise ReplyError(str(event["error"]["message"]))
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            yield Piece(
                reasoning=delta.get("reasoning_content") or delta.get("reasoning") or "",
                text=delta.get("content") or "",
                finish_reason=choice.get("finish_reason"),
            )
        if event.get("usage") or event.get("cache_explanation"):
            yield Piece(usage=_usage(event.get("usage")), explanation=event.get("cache_explanation"))


def _usage(usage: dict[str, Any] | None) -> Usage | None:
    if not usage:
        return None
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Usage(usage.get("prompt_tokens", 0), cached, usage.get("completion_tokens", 0))


def _refusal(status: int, body: bytes) -> ReplyError:
    kind = KeyNeededError if status == http.HTTPStatus.UNAUTHORIZED else ReplyError
    try:
        error = msgspec.json.decode(body)["error"]
        return kind(f"status {status}: {error['message']}", str(error.get("code")))
    except (msgspec.DecodeError, LookupError, TypeError):
        return kind(f"status {status}: {body.decode(errors='replace')[:200]}")
