"""`arbora key NAME`: a new API key, and its line for the key file."""

from __future__ import annotations

import json
import secrets

from ....runtime.api_keys import key_hash

PREFIX = "arbora-"
RANDOM_BYTES = 32


def new_key() -> str:
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def line_of(name: str, key: str) -> str:
    """The key's line without limits. It has only the hash, so the file does not reveal the key."""
    return json.dumps({"name": name, "sha256": key_hash(key)})


def as_json(name: str, key: str) -> str:
    """A JSON object with the key, its name and its hash, for programs that make keys."""
    return json.dumps({"key": key, "name": name, "sha256": key_hash(key)})
