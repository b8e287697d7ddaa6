"""A server with OpenAI's API, to which a chat sends its conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from typing import Any

import httpx
import msgspec

from ....runtime.errors import ConfigError
from ...language.api_client import ApiClient, ApiError, Piece
from ..listed_models import list_models
from ..server_option import server_url

TIMEOUT_SECONDS = 600.0
OWNER = "arbora"


class Model(msgspec.Struct, frozen=True):
    name: str
    is_arboras: bool
    """whether Arbora serves the model, which explains cache misses"""


class Server:
    """A server with OpenAI's API. `url` may end in /v1.

    Each request runs in a new event loop. The client keeps no connection between requests.
    """

    def __init__(self, url: str, api_key: str | None) -> None:
        self._client = ApiClient(server_url(url), api_key, TIMEOUT_SECONDS)
        self._has_key = bool(api_key)

    def models(self) -> list[Model]:
        """The served models, at least one. Raises ConfigError if the server lists none."""
        cards = asyncio.run(list_models(self._client, self._has_key))
        return [Model(card["id"], card.get("owned_by") == OWNER) for card in cards]

    def check_template(self, model: str) -> None:
        """Raises ConfigError if Arbora's model has no chat template. Other problems are left to the turns."""
        hello = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
        try:
            asyncio.run(self._client.request("POST", "/tokenize", hello))
        except ApiError as error:
            if error.code == "no_chat_template":
                raise ConfigError(
                    f"the model {model} has no chat template, so it can't chat. Send texts to "
                    "/v1/completions, or start its server with --chat-template FILE, a Jinja template."
                ) from None
        except httpx.TransportError:
            pass

    def reply(
        self, model: str, messages: Sequence[object], fields: Mapping[str, Any] | None = None
    ) -> Generator[Piece, None, None]:
        """Yields the pieces of the next turn; closing the iterator ends the request. Raises ApiError.

        fields: more fields of the request
        """
        body = {"model": model, "messages": messages, **(fields or {})}
        pieces = self._client.pieces("/v1/chat/completions", body)
        with asyncio.Runner() as runner:
            try:
                while (piece := runner.run(_next(pieces))) is not None:
                    yield piece
            except httpx.TransportError as error:
                raise ApiError(f"the connection broke: {error}") from error
            finally:
                runner.run(_close(pieces))


async def _next(pieces: AsyncGenerator[Piece, None]) -> Piece | None:
    return await anext(pieces, None)


async def _close(pieces: AsyncGenerator[Piece, None]) -> None:
    await pieces.aclose()
