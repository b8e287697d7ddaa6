"""The client behind a request: its name for fairness, its tenant, and the namespaces that it may use."""

from __future__ import annotations

from hashlib import sha256

from starlette.requests import Request
from starlette.types import Scope

from ...runtime.config import ServeConfig
from ..work.caller import Caller

SENT_KEY = "arbora.api_key"  # in the scope of a request: the known key that it was sent with
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
    name = request.scope[SENT_KEY] if len(config.api_keys) > 1 else host
    return Caller(name, left, body_bytes)


def tenant_of(request: Request, user: str | None, config: ServeConfig) -> str:
    """The tenant: a hash of the API key or `user`; empty without either.

    With several API keys the tenant is the key: a client could use many names as `user` and so get more than
    its share. With one key or none the tenant is the `user`.
    """
    name = request.scope[SENT_KEY] if len(config.api_keys) > 1 else user
    return sha256(name.encode()).hexdigest()[:NAME_LENGTH] if name else ""


def owner_of(scope: Scope, config: ServeConfig) -> str:
    """A hash of the API key that the request was sent with; empty on a server without keys."""
    return sha256(scope[SENT_KEY].encode()).hexdigest()[:NAME_LENGTH] if config.api_keys else ""


def cache_scope(request: Request, config: ServeConfig) -> str:
    """The beginning of all namespace names that the request may use. It is the same after a restart."""
    if not config.isolate_keys:
        return ""
    key: str = request.scope[SENT_KEY]
    return sha256(key.encode()).hexdigest() + "/"


def shown_namespace(name: str) -> str:
    """A short name for display. It can't be used in a request, since anyone who knows a salt could probe its
    users' prompts."""
    return sha256(name.encode()).hexdigest()[:NAME_LENGTH]
