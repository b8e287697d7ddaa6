"""The owners of batches: the hashes of the API keys that made them."""

from __future__ import annotations

from collections.abc import Mapping

from ....runtime.api_keys import ApiKey
from ...http.keys.key_ring import KeyRing


def known_owners(ring: KeyRing) -> Mapping[str, ApiKey | None]:
    """The keys whose batches this server may run now, by their hashes."""
    return {key.sha256: key for key in ring.keys} or {"": None}
