"""Arbora: a serving engine for open-weight language models, built around a radix tree of KV pages."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .frontend.engine.completion import (
        Choice,
        Completion,
        CompletionPart,
        Score,
        TokenLogprob,
        ToolCall,
        ToolCallPart,
        Usage,
    )
    from .frontend.engine.engine import Engine
    from .frontend.engine.options import EngineOptions
    from .frontend.engine.sampling import ChatOptions, Sampling
    from .frontend.engine.vllm_script import LLM, LoRARequest, SamplingParams
    from .frontend.language.calls import assistant, gen, select, system, tool, user
    from .frontend.language.default_backend import set_default_backend
    from .frontend.language.errors import ProgramError
    from .frontend.language.http_backend import connect
    from .frontend.language.program import program
    from .frontend.language.state import State
    from .frontend.language.static import prewarm, trace
    from .frontend.launch.errors import ServerError
    from .runtime.errors import ConfigError, RequestError

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "ChatOptions",
    "Choice",
    "Completion",
    "CompletionPart",
    "ConfigError",
    "Engine",
    "EngineOptions",
    "LoRARequest",
    "ProgramError",
    "RequestError",
    "Sampling",
    "SamplingParams",
    "Score",
    "ServerError",
    "State",
    "TokenLogprob",
    "ToolCall",
    "ToolCallPart",
    "Usage",
    "assistant",
    "connect",
    "gen",
    "prewarm",
    "program",
    "select",
    "set_default_backend",
    "system",
    "tool",
    "trace",
    "user",
]
_HOMES = {
    "LLM": ".frontend.engine.vllm_script",
    "ChatOptions": ".frontend.engine.sampling",
    "Choice": ".frontend.engine.completion",
    "Completion": ".frontend.engine.completion",
    "CompletionPart": ".frontend.engine.completion",
    "ConfigError": ".runtime.errors",
    "Engine": ".frontend.engine.engine",
    "EngineOptions": ".frontend.engine.options",
    "LoRARequest": ".frontend.engine.vllm_script",
    "ProgramError": ".frontend.language.errors",
    "RequestError": ".runtime.errors",
    "Sampling": ".frontend.engine.sampling",
    "SamplingParams": ".frontend.engine.vllm_script",
    "Score": ".frontend.engine.completion",
    "ServerError": ".frontend.launch.errors",
    "State": ".frontend.language.state",
    "TokenLogprob": ".frontend.engine.completion",
    "ToolCall": ".frontend.engine.completion",
    "ToolCallPart": ".frontend.engine.completion",
    "Usage": ".frontend.engine.completion",
    "assistant": ".frontend.language.calls",
    "connect": ".frontend.language.http_backend",
    "gen": ".frontend.language.calls",
    "prewarm": ".frontend.language.static",
    "program": ".frontend.language.program",
    "select": ".frontend.language.calls",
    "set_default_backend": ".frontend.language.default_backend",
    "system": ".frontend.language.calls",
    "tool": ".frontend.language.calls",
    "trace": ".frontend.language.static",
    "user": ".frontend.language.calls",
}


def __getattr__(name: str) -> object:
    """Public names are loaded when they are asked for, so that no process loads what it doesn't need."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name], __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
