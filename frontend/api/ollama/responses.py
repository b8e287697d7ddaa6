"""Ollama's response bodies. Durations are in nanoseconds."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from ...core.cache_misses.explanation import Explanation
from ...core.reply import UnenforcedKeyword

DoneReason = Literal["stop", "length", "load", "unload"]


class ErrorResponse(Struct):
    """An error. Arbora adds `code`, a stable word, and `param`, the path of the field at fault."""

    error: str
    code: str | None
    param: str | None


class Embedded(Struct, kw_only=True):
    """`embeddings` is the JSON of a list of numbers for each text."""

    model: str
    embeddings: Raw
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class Embedding(Struct):
    embedding: list[float]


class CalledFunction(Struct):
    """A call's function. `arguments` is the JSON of an object."""

    index: int
    name: str
    arguments: Raw


class ToolCall(Struct):
    id: str
    function: CalledFunction


class ReplyMessage(Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob] | UnsetType = UNSET


class Answer(Struct, kw_only=True):
    """A line of a stream, or a whole answer. /api/chat has `message`, /api/generate `response`.

    `prompt_cached_count` is the number of prompt tokens that were found in the cache. This field,
    `unenforced` and `cache_explanation` are Arbora's.
    """

    model: str
    created_at: str
    message: ReplyMessage | UnsetType = UNSET
    response: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    done: bool
    done_reason: DoneReason | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    prompt_cached_count: int | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    unenforced: list[UnenforcedKeyword] | UnsetType = UNSET
    cache_explanation: Explanation | UnsetType = UNSET


class Details(Struct, kw_only=True):
    """Facts about a model. `parameter_size` is a text such as "0.6B", or empty if unknown."""

    parent_model: str = ""
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class ListedModel(Struct, kw_only=True):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details


class ModelList(Struct):
    models: list[ListedModel]


class RunningModel(Struct, kw_only=True):
    name: str
    model: str
    size: int
    digest: str
    details: Details
    expires_at: str
    size_vram: int
    context_length: int


class RunningList(Struct):
    models: list[RunningModel]


class ShownModel(Struct, kw_only=True):
    modelfile: str = ""
    parameters: str = ""
    template: str
    details: Details
    model_info: dict[str, str | int | float]
    capabilities: list[str]
    modified_at: str


class Version(Struct):
    """The `version` of Ollama's API, and the version of this server, `arbora`."""

    version: str
    arbora: str
