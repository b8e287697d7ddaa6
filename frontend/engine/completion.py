"""The results of `Engine`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..core.logprobs import TokenLogprob
from ..core.reply import UnenforcedKeyword, Usage
from .typed import describe_mismatch, schema_and_reader

__all__ = [
    "Choice",
    "Completion",
    "CompletionPart",
    "Score",
    "TokenLogprob",
    "ToolCall",
    "ToolCallPart",
    "Usage",
]


class ToolCall(msgspec.Struct, frozen=True):
    """A call of a tool. `arguments` is JSON as the model wrote it."""

    id: str
    name: str
    arguments: str

    def values(self) -> dict[str, Any]:
        """The arguments by name. Raises `msgspec.DecodeError` for text that is no JSON object."""
        return msgspec.json.decode(self.arguments, type=dict[str, Any])

    def message(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


class ToolCallPart(msgspec.Struct, frozen=True):
    """A part of call number `index`. The first part has `id` and `name`. The parts of `arguments` join to
    JSON text."""

    index: int
    id: str | None
    name: str | None
    arguments: str


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One whole reply. `reasoning` is a reasoning model's text before the answer, in chats.

    `finish_reason` is "length", "stop" or "tool_calls". A model stops by itself, or at a stop string or id,
    which is then the `stop_reason`. `tokens` are the reply's ids, a final stop id included. `logprobs` has an
    entry for each token if they were asked for.
    """

    text: str
    reasoning: str
    tool_calls: list[ToolCall]
    tokens: list[int]
    finish_reason: str
    stop_reason: str | int | None
    logprobs: Sequence[TokenLogprob]
    json_schema: object = None
    """The request's `json_schema`: a schema or a type."""

    @property
    def value(self) -> Any:
        """The value of the text: of the type that was given as `json_schema`, or what JSON has.

        Raises ValueError for a text that is no such value, as that of a reply that `max_tokens` cut.
        """
        _, read = schema_and_reader(True if self.json_schema is None else self.json_schema)
        try:
            return read(self.text)
        except ValueError as error:  # also the errors of msgspec and pydantic
            raise ValueError(describe_mismatch("the reply", self.text, self.finish_reason, error)) from error


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The replies to one prompt: `n` choices. `text` and the other properties are those of the first choice.

    `prompt_logprobs` has an entry for each prompt token if the request asked for them. Its `logprob` is None
    for the first token and before `prompt_logprobs_start`. `unenforced` are keywords of the schema that were
    left out, as the request allowed.
    """

    choices: list[Choice]
    usage: Usage
    prompt_tokens: Sequence[int]
    prompt_logprobs: Sequence[TokenLogprob] = ()
    unenforced: list[UnenforcedKeyword] = []

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def value(self) -> Any:
        return self.choices[0].value

    @property
    def reasoning(self) -> str:
        return self.choices[0].reasoning

    @property
    def tool_calls(self) -> list[ToolCall]:
        return self.choices[0].tool_calls

    @property
    def tokens(self) -> list[int]:
        return self.choices[0].tokens

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        return self.choices[0].stop_reason

    @property
    def logprobs(self) -> Sequence[TokenLogprob]:
        return self.choices[0].logprobs


class CompletionPart(msgspec.Struct, frozen=True, kw_only=True):
    """The additions to choice number `choice` since its last part.

    A choice's last part has its `finish_reason`, and the `usage` of all choices up to then.
    """

    text: str
    choice: int = 0
    reasoning: str = ""
    tool_calls: Sequence[ToolCallPart] = ()
    logprobs: Sequence[TokenLogprob] = ()
    finish_reason: str | None = None
    usage: Usage | None = None


class Score(msgspec.Struct, frozen=True):
    """How likely a choice is after a prompt. `logprob` is the sum over its `tokens` scored tokens. `usage`
    counts the prompt with the choice."""

    logprob: float
    tokens: int
    usage: Usage

    @property
    def mean(self) -> float:
        """The log-probability of a token on average."""
        return self.logprob / self.tokens
