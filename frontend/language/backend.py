"""The interface between programs and a model: replies and scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from ..engine.completion import ToolCall
from ..engine.completion import Usage as EngineUsage
from .api_client import Usage as ServerUsage

OnText: TypeAlias = Callable[[str], None]


class TextPrompt(msgspec.Struct, frozen=True):
    text: str


class ChatPrompt(msgspec.Struct, frozen=True):
    """A conversation to continue. `prefix` is the beginning of the assistant's reply."""

    messages: tuple[Mapping[str, Any], ...]
    prefix: str

    def whole(self) -> list[Mapping[str, Any]]:
        """The messages. If there is a prefix, it is the last message."""
        begun = [{"role": "assistant", "content": self.prefix}] if self.prefix else []
        return [*self.messages, *begun]


Prompt: TypeAlias = TextPrompt | ChatPrompt
Usage: TypeAlias = ServerUsage | EngineUsage
Lease: TypeAlias = Mapping[str, Any]
"""The HTTP API's field `cache_lease`. Servers without the field ignore it."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply."""

    text: str
    finish_reason: str
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = ServerUsage()


class Scores(msgspec.Struct, frozen=True):
    """Each choice's mean log-probability per token. `usage` sums over the prompts of all choices."""

    means: tuple[float, ...]
    usage: Usage


class Backend(Protocol):
    """Runs calls. All methods run on the language's event loop, and raise errors that say what to do."""

    concurrency: int
    """The number of programs that `run_batch` runs at a time."""

    async def reply(self, prompt: Prompt, sampling: Mapping[str, Any], on_text: OnText | None) -> Reply:
        """Computes a reply. `sampling` has the HTTP API's fields, and `regex`, `json_schema`, `choices` or
        `grammar`. `on_text` gets the text as it arrives."""

    async def score(self, prompt: Prompt, choices: Sequence[str], lease: Lease) -> Scores:
        """The log-probability of each choice after the prompt. The lease keeps the prefix that the choices
        share.

        Scored are the tokens in which the prompt with a choice differs from the prompt alone and from the
        others, so text that merges into the prompt's last token counts too.
        """

    async def prefill(self, prompt: Prompt, lease: Lease) -> Reply:
        """Computes the prompt, so that it is in the cache, and leases it."""

    async def end_session(self, session: str, cache_salt: str | None) -> None:
        """Ends the leases that keep the prefixes of one program run in the cache."""
