"""Reads the drafts of chats and of texts to complete."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from msgspec import Raw

from ....runtime.errors import RequestError
from ....runtime.messages import GrammarSpec
from ...core.conversation import tool_definitions
from ...core.draft import Draft, Prompt
from ...core.fields import SamplingFields
from ...core.grammar_fields import (
    choice_spec,
    grammar_spec,
    is_null,
    object_spec,
    one_spec,
    regex_spec,
    schema_spec,
)
from ...core.service import Service
from ...core.tool_choice import calls_wanted
from ...core.validation import check_declared
from .conversation import chat_conversation, prompt_conversation
from .options import limits, sampling_fields
from .protocol import ChatRequest, GenerateRequest, PromptRequest
from .thinking import check_think


def read_chat(service: Service, request: ChatRequest) -> Draft:
    """Raises `RequestError` for a request that can't be served."""
    tools = tool_definitions(request.tools)
    prompt = Prompt(param="messages", conversation=chat_conversation(request), tools=tools)
    return replace(_draft(service, request, prompt), calls=calls_wanted("auto", tools, True))


def read_generate(service: Service, request: GenerateRequest) -> Draft:
    """Raises `RequestError` for a request that can't be served. A model without a chat template gets the
    prompt as it is."""
    if request.raw and (request.system or request.think):
        name = "system" if request.system else "think"
        raise RequestError(
            f"{name} has no effect with raw: write it into the prompt, or leave raw out.",
            param=name,
            code="invalid_value",
        )
    if request.raw or (service.template is None and not request.system):
        return _draft(service, request, Prompt(param="prompt", items=[request.prompt or ""], special=True))
    return _draft(service, request, Prompt(param="prompt", conversation=prompt_conversation(request)))


def _draft(service: Service, request: PromptRequest, prompt: Prompt) -> Draft:
    fields = _checked_fields(service, request)
    return Draft(
        fields=fields,
        prompt=prompt,
        limits=limits(request, service.engine.check_serving()),
        is_chat=prompt.conversation is not None,
        constraint=_constraint(request),
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        streams=request.stream is not False,
        explains=bool(request.explain_cache),
    )


def _checked_fields(service: Service, request: PromptRequest) -> SamplingFields:
    check_think(service, request)
    check_declared(request)
    if request.top_logprobs and not request.logprobs:
        raise RequestError(
            f"top_logprobs is {request.top_logprobs}, but is only allowed when logprobs is true.",
            param="top_logprobs",
            code="invalid_value",
        )
    return sampling_fields(request)


def _constraint(request: PromptRequest) -> GrammarSpec | None:
    """The constraint on an answer without calls, or None."""
    return one_spec(
        (
            _format(request.format),
            regex_spec(request.regex, "regex"),
            choice_spec(request.choice, "choice"),
            grammar_spec(request.grammar, "grammar"),
        )
    )


def _format(format: Raw) -> GrammarSpec | None:
    if is_null(format):
        return None
    if not bytes(format).startswith(b'"'):
        return schema_spec(format, "format")
    word = msgspec.json.decode(format, type=str)
    if word not in ("", "json"):
        raise RequestError(
            f"format is {word[:100]!r}, but must be 'json' or a JSON schema: an object.",
            param="format",
            code="invalid_value",
        )
    return object_spec(word == "json", "format")
