"""The bodies of /generate: token ids in and out. Types only: other modules check the values."""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType

from ...core.cache_misses.explanation import Explanation
from ...core.fields import NULL, JsonObject, SamplingFields
from ...core.fields import TopLogprobs as LogprobsCount
from ...core.messages import ChatMessage
from ...core.reply import UnenforcedKeyword, Usage


class GenerateRequest(SamplingFields, kw_only=True):
    """Exactly one of `prompt`, `prompt_token_ids` and `messages` is given; `prompt` and `prompt_token_ids`
    may be lists of several."""

    model: str | None = None
    prompt: str | list[str] | None = None
    prompt_token_ids: list[int | list[int]] | None = None
    messages: list[ChatMessage] | None = None
    chat_template_kwargs: JsonObject | None = None
    add_special_tokens: bool | None = None
    stream: bool | None = None
    logprobs: LogprobsCount | None = None
    return_prompt_token_ids: bool | None = None
    explain_cache: bool | None = None
    json_schema: Raw = NULL
    user: str | None = None


TopLogprobs = list[list[tuple[int, float]]]
"""For each token, ids with their log-probabilities, the likeliest first."""


class Event(Struct, kw_only=True, omit_defaults=True):
    """The addition of one output to choice `index`. The last one of a choice has its `finish_reason`."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[float] | None = None
    top_logprobs: TopLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class Choice(Struct, kw_only=True):
    """A whole reply. `prompt_index` is the number of its prompt. Log-probabilities are null unless asked for.
    Those of the prompt are also null for its first token and before `prompt_logprobs_start`."""

    index: int
    prompt_index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None
    stop_reason: str | int | None
    logprobs: list[float] | None
    top_logprobs: TopLogprobs | None
    prompt_logprobs: list[float | None] | None
    prompt_top_logprobs: TopLogprobs | None


class End(Struct, kw_only=True):
    """The last event of a stream."""

    id: str
    model: str
    system_fingerprint: str
    usage: Usage
    prompt_token_ids: list[list[int]] | None
    unenforced: list[UnenforcedKeyword]
    cache_explanation: Explanation | UnsetType = UNSET


class Generated(End, kw_only=True):
    """A whole answer."""

    choices: list[Choice]


class ErrorBody(Struct):
    """An error. `code` is a stable word, `param` the path of the field at fault."""

    message: str
    code: str | None
    param: str | None


class ErrorResponse(Struct):
    error: ErrorBody
