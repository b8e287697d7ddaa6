"""The owner of files and batches: the API key that made them, stored as its hash."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request

from ...runtime.api_keys import ApiKey
from ...runtime.config import ServeConfig
from ..http.tenants import key_of


def owner_of(request: Request) -> str:
    """The hash of the request's key; empty on a server without keys."""
    key = key_of(request)
    return "" if key is None else key.sha256


def known_owners(config: ServeConfig) -> Mapping[str, ApiKey | None]:
    """The keys whose batches this server may run, by their hashes: those at the start of the server."""
    if not config.api_keys:
        return {"": None}
    return {key.sha256: key for key in config.api_keys}
