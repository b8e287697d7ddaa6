"""Who asks, by the API key of a request, and whose cached prefixes it may find."""

from __future__ import annotations

import hashlib

from starlette.requests import Request

from ..runtime.config import ServeConfig

TENANT = "arbora.tenant"  # in the ASGI scope


def key_name(key: bytes) -> str:
    """What a key is called wherever it must not be seen: the same in every process and after a restart."""
    return hashlib.sha256(key).hexdigest()[:32]


def tenant_of(request: Request) -> str:
    """The name of the key that the request came with; empty when the server wants none."""
    name: str = request.scope.get(TENANT, "")
    return name


def cache_scope(config: ServeConfig, request: Request) -> str:
    """What the names of all namespaces begin with that the request may use."""
    return f"{tenant_of(request)}/" if config.isolate_keys else ""


def cache_namespace(scope: str, salt: str | None) -> str:
    return scope + (salt or "")


def shown_namespace(name: str) -> str:
    """Salts are as good as passwords: whoever knows one may probe what its users send."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]
