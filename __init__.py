"""Arbora: a serving engine for open-weight language models, built around a radix tree of KV pages."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .frontend.completion import Completion, CompletionPart, Usage
    from .frontend.engine import Engine, EngineOptions
    from .frontend.engine_requests import Sampling
    from .frontend.launch.errors import ServerError
    from .runtime.errors import ConfigError, RequestError

__version__ = "0.1.0"
__all__ = [
    "Completion",
    "CompletionPart",
    "ConfigError",
    "Engine",
    "EngineOptions",
    "RequestError",
    "Sampling",
    "ServerError",
    "Usage",
]
_HOMES = {
    "Completion": ".frontend.completion",
    "CompletionPart": ".frontend.completion",
    "ConfigError": ".runtime.errors",
    "Engine": ".frontend.engine",
    "EngineOptions": ".frontend.engine",
    "RequestError": ".runtime.errors",
    "Sampling": ".frontend.engine_requests",
    "ServerError": ".frontend.launch.errors",
    "Usage": ".frontend.completion",
}


def __getattr__(name: str) -> object:
    """Public names are loaded when they are asked for, so that no process loads what it doesn't need."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
