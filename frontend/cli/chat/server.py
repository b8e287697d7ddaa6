"""A server with OpenAI's API, to which a chat sends its conversation."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from typing import Any

import httpx
import msgspec

from ....runtime.errors import ConfigError
from ...language.api_client import ApiClient, ApiError, Piece
from ..server_option import no_answer, root_cause, server_url

TIMEOUT_SECONDS = 600.0
OWNER = "arbora"


class Model(msgspec.Struct, frozen=True):
    name: str
    is_arboras: bool
    """served by Arbora, which explains cache misses"""


class Server:
    """A server with OpenAI's API. `url` may end in /v1."""

    def __init__(self, url: str, api_key: str | None) -> None:
        self._address = server_url(url)
        self._url = url
        self._api_key = api_key

    def models(self) -> list[Model]:
        """The served models, at least one. Raises ConfigError if the server lists none."""
        try:
            cards = asyncio.run(self._list_models())["data"]
            listed = [Model(str(card["id"]), card.get("owned_by") == OWNER) for card in cards]
        except httpx.TransportError as error:
            raise self._explain(error) from error
        except (ApiError, LookupError, TypeError) as error:
            if isinstance(error, ApiError) and error.status == 401:
                known = "does not know this API key: give another" if self._api_key else None
                asks = known or "asks for an API key: give it"
                raise ConfigError(
                    f"the server at {self._url} {asks} with --api-key KEY or in ARBORA_API_KEY."
                ) from error
            raise ConfigError(f"the server at {self._url} does not tell its model: {error}") from error
        if not listed:
            raise ConfigError(f"the server at {self._url} lists no model.")
        return listed

    async def _list_models(self) -> Any:
        client = self._client()
        try:
            return await client.request("GET", "/v1/models")
        finally:
            await client.close()

    def reply(
        self, model: str, messages: Sequence[Mapping[str, str]], fields: Mapping[str, Any] | None = None
    ) -> Generator[Piece, None, None]:
        """Yields the pieces of the next turn; closing the iterator ends the request. Raises ApiError.

        fields: more fields of the request
        """
        body = {"model": model, "messages": messages, **(fields or {})}
        with asyncio.Runner() as runner:
            client = self._client()
            pieces = client.pieces("/v1/chat/completions", body)
            try:
                while (piece := runner.run(_next(pieces))) is not None:
                    yield piece
            except httpx.TransportError as error:
                raise ApiError(f"the connection broke: {error}") from error
            finally:
                runner.run(_close(pieces, client))

    def _client(self) -> ApiClient:
        return ApiClient(self._address, self._api_key, TIMEOUT_SECONDS)

    def _explain(self, error: httpx.TransportError) -> ConfigError:
        cause = root_cause(error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            return ConfigError(
                f"the certificate of {self._url} is not trusted ({cause.verify_message}). Set SSL_CERT_FILE "
                "to a PEM file with it or its issuer, or name the server with --url as the certificate does."
            )
        if isinstance(error, httpx.ReadError | httpx.RemoteProtocolError):
            is_secure = self._address.startswith("https:")
            hint = "" if is_secure else " If it uses TLS, its address begins with https://."
            return ConfigError(f"the server at {self._url} closed the connection without a reply.{hint}")
        return no_answer(self._url, error)


async def _next(pieces: AsyncGenerator[Piece, None]) -> Piece | None:
    return await anext(pieces, None)


async def _close(pieces: AsyncGenerator[Piece, None], client: ApiClient) -> None:
    await pieces.aclose()
    await client.close()
