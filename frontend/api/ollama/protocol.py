"""Ollama's request bodies with Arbora's extra fields.

Types only: other modules check the values. A null field counts as absent.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Raw, Struct

from ...core.declared import within
from ...core.fields import (
    NULL,
    JsonObject,
    MinP,
    OccurrencePenalty,
    RepetitionPenalty,
    ReplyFields,
    Seed,
    StopString,
    StopStrings,
    Temperature,
    TopK,
    TopLogprobs,
    TopP,
)
from ...core.messages import MessageToolCall, Tool


class Options(Struct, kw_only=True):
    """Ollama's options. The options of type `Raw` change no reply, or only a few of their values
    are accepted."""

    num_predict: Annotated[int, within(-2)] | None = None
    num_ctx: Annotated[int, within(1)] | None = None
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    min_p: MinP | None = None
    seed: Seed | None = None
    stop: StopString | StopStrings | None = None
    repeat_penalty: RepetitionPenalty | None = None
    presence_penalty: OccurrencePenalty | None = None
    frequency_penalty: OccurrencePenalty | None = None
    repeat_last_n: Raw = NULL
    typical_p: Raw = NULL
    tfs_z: Raw = NULL
    mirostat: Raw = NULL
    mirostat_eta: Raw = NULL
    mirostat_tau: Raw = NULL
    penalize_newline: Raw = NULL
    num_keep: Raw = NULL
    num_batch: Raw = NULL
    num_gpu: Raw = NULL
    main_gpu: Raw = NULL
    num_thread: Raw = NULL
    numa: Raw = NULL
    low_vram: Raw = NULL
    f16_kv: Raw = NULL
    logits_all: Raw = NULL
    vocab_only: Raw = NULL
    embedding_only: Raw = NULL
    use_mmap: Raw = NULL
    use_mlock: Raw = NULL


class Message(Struct, kw_only=True):
    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class PromptRequest(ReplyFields, kw_only=True):
    """The fields that /api/chat and /api/generate share."""

    model: str | None = None
    stream: bool | None = None
    format: Raw = NULL
    options: Options | None = None
    think: bool | str | None = None
    keep_alive: float | str | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    chat_template_kwargs: JsonObject | None = None
    explain_cache: bool | None = None


class ChatRequest(PromptRequest, kw_only=True):
    """The body of /api/chat."""

    messages: list[Message] | None = None
    tools: list[Tool] | None = None


class GenerateRequest(PromptRequest, kw_only=True):
    """The body of /api/generate."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None


class EmbedRequest(Struct, kw_only=True):
    """The body of /api/embed."""

    input: str | list[str]
    model: str | None = None
    dimensions: Annotated[int, within(1)] | None = None
    truncate: bool | None = None
    keep_alive: float | str | None = None


class EmbeddingsRequest(Struct, kw_only=True):
    """The body of /api/embeddings."""

    prompt: str
    model: str | None = None
    keep_alive: float | str | None = None


class ShowRequest(Struct, kw_only=True):
    """The body of /api/show. `name` is the older name of `model`."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None
