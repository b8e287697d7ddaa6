"""The API keys that this process knows. They may change while it runs."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from ....runtime.api_keys import ApiKey, are_several, key_hash
from ....runtime.errors import RequestError


class KeyRing:
    """`several`: the server tells clients apart by their keys. It is decided at the start."""

    def __init__(self, keys: tuple[ApiKey, ...]) -> None:
        self.several = are_several(keys)
        self.keys = keys

    def replace(self, keys: Iterable[ApiKey]) -> None:
        self.keys = tuple(keys)

    def find(self, sent: str) -> ApiKey | None:
        """The known key that was sent. All keys are compared, so that the time reveals nothing."""
        digest = key_hash(sent).encode()
        matches = [key for key in self.keys if secrets.compare_digest(digest, key.sha256.encode())]
        return matches[0] if matches else None

    def still_known(self, key: ApiKey) -> ApiKey:
        """The key with its present limits. Raises `RequestError` if the server no longer has it."""
        for known in self.keys:
            if known.sha256 == key.sha256:
                return known
        raise RequestError(
            "The API key of this connection is no longer valid.", status=401, code="invalid_api_key"
        )

    def has_name(self, name: str) -> bool:
        return any(key.name == name for key in self.keys)
