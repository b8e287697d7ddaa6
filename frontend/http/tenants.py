"""The client behind a request: its name for fairness, its tenant, and the namespaces that it may use."""

from __future__ import annotations

from hashlib import sha256

from starlette.requests import Request
from starlette.types import Scope

from ...runtime.api_keys import ApiKey
from ...runtime.config import ServeConfig
from ..core.work.caller import Caller

SENT_KEY = "arbora.api_key"  # in the scope of a request: the `ApiKey` that it was sent with, or None
BODY_BYTES = "arbora.body_bytes"  # in the scope of a request whose body was read
NAME_LENGTH = 16


def caller_of(request: Request, config: ServeConfig) -> Caller:
    """The caller, named by the API key if the server has several, else by the client's address."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    def body_bytes() -> int:
        size: int = request.scope.get(BODY_BYTES, 0)
        return size

    host = request.client.host if request.client is not None else ""
    name = owner_of(request.scope) if config.has_several_keys else host
    return Caller(name, left, body_bytes)


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
    """A short name for display. It can't be used in a request, since anyone who knows a salt could probe its
    users' prompts."""
    return sha256(name.encode()).hexdigest()[:NAME_LENGTH]
