"""A server with OpenAI's API, to which a chat sends its conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from typing import Any

import httpx
import msgspec

from ...language.api_client import ApiClient, ApiError, Piece
from ..listed_models import list_models
from ..server_option import server_url

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
        self._api_key = api_key

    def models(self) -> list[Model]:
        """The served models, at least one. Raises ConfigError if the server lists none."""
        return asyncio.run(self._list_models())

    async def _list_models(self) -> list[Model]:
        client = self._client()
        cards = await list_models(client, bool(self._api_key))
        await client.close()
        return [Model(card["id"], card.get("owned_by") == OWNER) for card in cards]

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


async def _next(pieces: AsyncGenerator[Piece, None]) -> Piece | None:
    return await anext(pieces, None)


async def _close(pieces: AsyncGenerator[Piece, None], client: ApiClient) -> None:
    await pieces.aclose()
    await client.close()
