"""Who asks: whose fair share of the server is used, and whose cached prefixes may be found."""

from __future__ import annotations

from hashlib import sha256

from starlette.requests import Request

from ...runtime.config import ServeConfig

SENT_KEY = "arbora.api_key"  # in the scope of a request: the known key that came with it
NAME_LENGTH = 16


def tenant_of(request: Request, user: str | None, config: ServeConfig) -> str:
    """A name that doesn't tell the key or user it stands for; empty where there is neither.

    With several API keys it is the key that counts: `user` is whatever the client says, and must not give
    one key more than another. Where all send the same key, or none, `user` parts them.
    """
    name = request.scope[SENT_KEY] if len(config.api_keys) > 1 else user
    return sha256(name.encode()).hexdigest()[:NAME_LENGTH] if name else ""


def cache_scope(request: Request, config: ServeConfig) -> str:
    """What the names of all namespaces begin with that the request may use: the same after a restart."""
    if not config.isolate_keys:
        return ""
    key: str = request.scope[SENT_KEY]
    return sha256(key.encode()).hexdigest() + "/"


def shown_namespace(name: str) -> str:
    """Short, and of no use in a request: whoever knows a salt may probe what its users send."""
    return sha256(name.encode()).hexdigest()[:NAME_LENGTH]
