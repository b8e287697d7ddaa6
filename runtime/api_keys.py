"""API keys, their limits, and how much of the limits is left."""

from __future__ import annotations

import re
from hashlib import sha256

import msgspec

NAME_LENGTH = 16
"""characters of the hash that name a key without a name"""
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """The hash of a key, and what requests with the key may do. None: no limit.

    Limits of tokens count prompts and replies together. `max_tokens` shortens replies. `priority` is for
    requests that give none. Requests may give `best_priority` and larger numbers.
    """

    name: str
    sha256: str
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    max_tokens: int | None = None
    priority: int = 0
    best_priority: int | None = None


class Quota(msgspec.Struct, array_like=True, frozen=True):
    """The limits of a request's key that the scheduler keeps, because all HTTP processes share them.

    `prompt_tokens` is the sum over the request's prompts, and None in its choices after the first one.
    """

    key: str  # the key's name
    prompt_tokens: int | None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None


class Allowance(msgspec.Struct, array_like=True, frozen=True):
    """The unused rest of a limit per minute, and the seconds until the whole limit is available again."""

    limit: int
    left: int
    full_in_s: float


class Allowances(msgspec.Struct, array_like=True, frozen=True):
    """What is left of a key's limits; None without a limit."""

    requests: Allowance | None = None
    tokens: Allowance | None = None


def find_control(key: str) -> str | None:
    """Names the first control character of a key, which no HTTP header may have; None if there is none."""
    found = _CONTROL.search(key)
    return None if found is None else f"the character U+{ord(found[0]):04X}"


def key_hash(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def plain_key(key: str) -> ApiKey:
    """A key without limits, named by the beginning of its hash."""
    digest = key_hash(key)
    return ApiKey(name=digest[:NAME_LENGTH], sha256=digest)


def are_several(keys: tuple[ApiKey, ...]) -> bool:
    """Whether the clients of a server are told apart by their keys: it has several keys, or named ones."""
    return len({key.sha256 for key in keys}) > 1 or any(key.name != key.sha256[:NAME_LENGTH] for key in keys)
