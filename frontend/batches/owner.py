"""The owners of batches: the hashes of the API keys that made them."""

from __future__ import annotations

from collections.abc import Mapping

from ...runtime.api_keys import ApiKey
from ...runtime.config import ServeConfig


def known_owners(config: ServeConfig) -> Mapping[str, ApiKey | None]:
    """The keys whose batches this server may run, by their hashes: those at the start of the server."""
    if not config.api_keys:
        return {"": None}
    return {key.sha256: key for key in config.api_keys}
