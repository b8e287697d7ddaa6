"""Turns the bodies of Ollama's chat and generate requests into `Draft`s, whose prompts are not rendered
yet."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from msgspec import Raw

from ....runtime.messages import GrammarSpec
from ...core.conversation import tool_definitions
from ...core.draft import Draft, Prompt
from ...core.grammar_fields import (
    is_null,
    object_spec,
    one_spec,
    schema_spec,
    text_specs,
)
from ...core.service import Service
from ...core.tool_choice import calls_wanted
from ...core.validation import check_declared, count_alternatives, invalid_field
from .conversation import chat_conversation, check_think, prompt_conversation
from .models import find_name
from .options import limits, sampling_fields
from .protocol import ChatRequest, GenerateRequest, PromptRequest


def read_chat(service: Service, request: ChatRequest) -> Draft:
    """The draft of a chat. Raises `RequestError` for a request that can't be served."""
    tools = tool_definitions(request.tools)
    prompt = Prompt(param="messages", conversation=chat_conversation(request), tools=tools)
    return replace(_draft(service, request, prompt), calls=calls_wanted("auto", tools, True))


def read_generate(service: Service, request: GenerateRequest) -> Draft:
    """The draft of a text to complete. A model without a chat template gets the prompt unchanged."""
    if request.raw and (request.system or request.think):
        name = "system" if request.system else "think"
        raise invalid_field(name, "has no effect with raw: write it into the prompt, or leave raw out")
    if request.raw or (service.template is None and not request.system):
        return _draft(service, request, Prompt(param="prompt", items=[request.prompt or ""], special=True))
    return _draft(service, request, Prompt(param="prompt", conversation=prompt_conversation(request)))


def _draft(service: Service, request: PromptRequest, prompt: Prompt) -> Draft:
    check_think(service, request)
    check_declared(request)
    return Draft(
        fields=sampling_fields(request),
        prompt=prompt,
        limits=limits(request, service.engine.check_serving()),
        is_chat=prompt.conversation is not None,
        constraint=_constraint(request),
        logprobs=count_alternatives(request.logprobs, request.top_logprobs),
        streams=request.stream is not False,
        explains=bool(request.explain_cache),
        model=find_name(service, request.model),
    )


def _constraint(request: PromptRequest) -> GrammarSpec | None:
    """The constraint on an answer without calls, or None."""
    return one_spec([_format(request.format), *text_specs(request)])


def _format(format: Raw) -> GrammarSpec | None:
    if is_null(format):
        return None
    if not bytes(format).startswith(b'"'):
        return schema_spec(format, "format")
    word = msgspec.json.decode(format, type=str)
    if word not in ("", "json"):
        raise invalid_field("format", f"is {word[:100]!r}, but must be 'json' or a JSON schema: an object")
    return object_spec(word == "json", "format")
