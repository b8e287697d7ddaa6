"""Tells whose request it is: the API key, the caller's name, the tenant, the namespaces it may use."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from hashlib import sha256

from starlette.requests import Request
from starlette.types import Scope

from ...runtime.api_keys import ApiKey, are_several, key_hash
from ...runtime.config import ServeConfig
from ...runtime.errors import RequestError
from ..core.work.caller import Caller

SENT_KEY = "arbora.api_key"  # key in the ASGI scope: the request's `ApiKey`, or None
BODY_BYTES = "arbora.body_bytes"  # key in the ASGI scope: the bytes of the request's body, once it was read
NAME_LENGTH = 16


class KeyRing:
    """The API keys that this process knows. They may change while it runs.

    `several`: the server tells clients apart by their keys. It is decided at the start."""

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
        """The key with its present limits. Raises `RequestError` if the server no longer knows the key."""
        for known in self.keys:
            if known.sha256 == key.sha256:
                return known
        raise RequestError(
            "The API key of this connection is no longer valid.", status=401, code="invalid_api_key"
        )


def sent_keys(scope: Scope) -> set[str]:
    """The different keys that a request was sent with: `Authorization: Bearer KEY` (OpenAI) and
    `x-api-key: KEY` (Anthropic). Other schemes than Bearer, such as a proxy's Basic, do not count."""
    found: set[bytes] = set()
    for name, value in scope["headers"]:
        scheme, _, credentials = value.partition(b" ")
        if name == b"x-api-key":
            found.add(value.strip())
        elif name == b"authorization" and scheme.lower() == b"bearer":
            found.add(credentials.strip())
    return {key.decode("utf-8", "replace") for key in found if key}


def caller_of(request: Request, config: ServeConfig) -> Caller:
    """The caller, named by the API key if the server has several, else by the client's address."""

    async def wait_until_gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    def body_bytes() -> int:
        size: int = request.scope.get(BODY_BYTES, 0)
        return size

    host = request.client.host if request.client is not None else ""
    name = owner_of(request.scope) if config.has_several_keys else host
    return Caller(name, wait_until_gone, body_bytes)


def tenant_of(request: Request, user: str | None, config: ServeConfig) -> str:
    """The tenant: a hash of the API key or `user`; empty without either.

    With several API keys the tenant is the key: a client could use many names as `user` and so get more than
    its share. With one key or none the tenant is the `user`.
    """
    if config.has_several_keys:
        return owner_of(request.scope)[:NAME_LENGTH]
    return sha256(user.encode()).hexdigest()[:NAME_LENGTH] if user else ""


def owner_of(scope: Scope) -> str:
    """The hash of the API key that the request was sent with; empty on a server without keys."""
    key: ApiKey | None = scope.get(SENT_KEY)
    return "" if key is None else key.sha256


def cache_scope(request: Request, config: ServeConfig) -> str:
    """The beginning of all namespace names that the request may use. It is the same after a restart."""
    if not config.isolate_keys:
        return ""
    return owner_of(request.scope) + "/"


def key_of(request: Request) -> ApiKey | None:
    """The key that the request was sent with; None on a server without keys."""
    key: ApiKey | None = request.scope.get(SENT_KEY)
    return key


def shown_namespace(name: str) -> str:
    """A short name for display. It hides the salt, because anyone who knows a salt can probe its users'
    prompts."""
    return sha256(name.encode()).hexdigest()[:NAME_LENGTH]
