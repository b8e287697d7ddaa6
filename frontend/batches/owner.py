"""The owner of files and batches: the API key that made them, stored as its hash."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from starlette.requests import Request

from ...runtime.config import ServeConfig
from ..http.tenants import SENT_KEY


def owner_of(request: Request) -> str:
    """The hash of the request's key; empty on a server without keys."""
    key: str | None = request.scope.get(SENT_KEY)
    return _hash(key) if key else ""


def known_owners(config: ServeConfig) -> Mapping[str, str | None]:
    """The keys whose batches this server may run, by their hashes."""
    if not config.api_keys:
        return {"": None}
    return {_hash(key): key for key in config.api_keys}


def _hash(key: str) -> str:
    return sha256(key.encode()).hexdigest()
