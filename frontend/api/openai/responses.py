"""OpenAI's response bodies, with the few fields that vLLM adds."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import astuple

from ...core.cache_misses.explanation import Explanation
from ...core.reply import Reply, UnenforcedKeyword

C = TypeVar("C", bound=Struct)


class PromptTokensDetails(Struct):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class CompletionTokensDetails(Struct):
    reasoning_tokens: int = 0
    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET
    steps: int | UnsetType = UNSET
    """steps that sampled tokens of the reply; this and the next two are there if it had drafts"""
    drafted_tokens: int | UnsetType = UNSET
    accepted_tokens: int | UnsetType = UNSET


class Usage(Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


def wire_usage(reply: Reply, *, counts_reasoning: bool = False, counts_prediction: bool = False) -> Usage:
    usage = reply.usage()
    details = CompletionTokensDetails(sum(choice.reasoning_tokens for choice in reply.choices))
    if counts_prediction:
        details.accepted_prediction_tokens = sum(each.accepted_prediction for each in reply.choices)
        details.rejected_prediction_tokens = sum(each.rejected_prediction for each in reply.choices)
    drafts = reply.count_drafts()
    if drafts.drafted:
        details.steps, details.drafted_tokens, details.accepted_tokens = astuple(drafts)
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(usage.cached_tokens, usage.written_tokens),
        completion_tokens_details=details
        if counts_reasoning or counts_prediction or drafts.drafted
        else UNSET,
    )


class _Answer(Struct, Generic[C], kw_only=True):
    """The common fields of whole answers and events, of chats and text completions."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[C]
    usage: Usage | UnsetType | None = UNSET
    unenforced: list[UnenforcedKeyword] | UnsetType = UNSET
    cache_explanation: Explanation | UnsetType = UNSET


# Types of log-probabilities.


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[ContentLogprob]
    refusal: None = None


class CompletionLogprobs(Struct):
    """The parallel lists of text completions. The first token of an echoed prompt has null entries."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(Struct):
    """vLLM's form of a token at one position. `rank` counts from 1. A prompt's token may lack it."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


# Types of chats.


class FunctionCall(Struct):
    name: str
    arguments: str


class ToolCall(Struct):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class FunctionCallDelta(Struct, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class ToolCallPart(Struct, kw_only=True):
    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionCallDelta


class AssistantMessage(Struct, kw_only=True):
    """A message. `reasoning` is vLLM's newer name of `reasoning_content`. Only one is set: some clients join
    both."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None = None


class ChatCompletion(_Answer[ChatChoice], kw_only=True):
    object: Literal["chat.completion"] = "chat.completion"
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class MessageDelta(Struct, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallPart] | UnsetType = UNSET


class ChatChunkChoice(Struct, kw_only=True):
    """`stop_reason` comes with the finish reason."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | UnsetType | None = UNSET


class ChatChunk(_Answer[ChatChunkChoice], kw_only=True):
    """An event of a stream. The stream ends with the line `data: [DONE]`."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


# Types of text completions.


class CompletionChoice(Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(_Answer[CompletionChoice], kw_only=True):
    object: Literal["text_completion"] = "text_completion"
    usage: Usage


class CompletionChunkChoice(Struct, kw_only=True):
    """`stop_reason` comes with the finish reason."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | UnsetType | None = UNSET


class CompletionChunk(_Answer[CompletionChunkChoice], kw_only=True):
    """An event of a stream. The stream ends with the line `data: [DONE]`."""

    object: Literal["text_completion"] = "text_completion"


# Types of other endpoints.


class ModelCard(Struct, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "arbora"
    root: str
    parent: str | None = None
    max_model_len: int | None
    is_loaded: bool
    """whether the model answers at once; on a server that unloads models the next request loads it"""
    device: str
    sampling: dict[str, float] | None
    """the values of sampling fields that a request leaves out; None while the model is starting"""
    is_builtin: bool
    """whether the model is the small one that comes with Arbora, as a demonstration"""
    template_has_tools: bool
    """whether the chat template prints tools; of a model without them, calls may be wrong"""


class ModelList(Struct):
    data: list[ModelCard]
    object: Literal["list"] = "list"


class TokenizeResponse(Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(Struct):
    prompt: str


class ErrorBody(Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(Struct):
    error: ErrorBody
