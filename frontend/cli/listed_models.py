"""The models that a server with OpenAI's API lists, and the errors of a server that lists none."""

from __future__ import annotations

import ssl
from typing import Any

import httpx

from ...runtime.errors import ConfigError
from ..language.api_client import ApiClient, ApiError
from .server_option import no_answer, root_cause


async def list_models(client: ApiClient, has_key: bool) -> list[dict[str, Any]]:
    """The description of each model, at least one. Raises ConfigError if the server lists none.

    has_key: whether the user gave an API key
    """
    try:
        listed = [
            {**card, "id": str(card["id"])} for card in (await client.request("GET", "/v1/models"))["data"]
        ]
    except httpx.TransportError as error:
        raise _explain(client.url, error) from error
    except (ApiError, httpx.InvalidURL, LookupError, TypeError) as error:
        if isinstance(error, ApiError) and error.status == 401:
            asks = "does not know this API key: give another" if has_key else "asks for an API key: give it"
            raise ConfigError(
                f"the server at {client.url} {asks} with --api-key KEY or in ARBORA_API_KEY."
            ) from error
        raise ConfigError(f"the server at {client.url} does not tell its model: {error}") from error
    if not listed:
        raise ConfigError(f"the server at {client.url} lists no model.")
    return listed


def _explain(url: str, error: httpx.TransportError) -> ConfigError:
    cause = root_cause(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ConfigError(
            f"the certificate of {url} is not trusted ({cause.verify_message}). Set SSL_CERT_FILE to a PEM "
            "file with it or its issuer, or name the server with --url as the certificate does."
        )
    if isinstance(error, httpx.ReadError | httpx.RemoteProtocolError):
        hint = "" if url.startswith("https:") else " If it uses TLS, its address begins with https://."
        return ConfigError(f"the server at {url} closed the connection without a reply.{hint}")
    return no_answer(url, error)
