"""The checked parts of a request: its prompt, constraint, calls and sampling fields."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import Raw

from ....runtime.errors import RequestError
from ....runtime.messages import GrammarSpec
from ...core.cache_misses.outline import NO_OUTLINE, Outline
from ...core.constraint import enforced_as_asked
from ...core.conversation import rendered, tool_definitions
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
from ...core.requested_tools import ToolUse, tool_use
from ...core.service import Service
from ...core.tool_choice import calls_wanted
from ...core.validation import check_declared
from .conversation import chat_conversation, prompt_conversation
from .options import sampling_fields
from .protocol import ChatRequest, GenerateRequest, PromptRequest
from .thinking import check_think


class Prompt(NamedTuple):
    """`is_raw`: the text is no conversation, and the reply is plain text. `continues`: the reply continues
    the conversation's last message. `outline` has the parts of a conversation."""

    text: str
    fields: SamplingFields
    grammar: GrammarSpec | None
    use: ToolUse
    is_raw: bool = False
    continues: bool = False
    outline: Outline = NO_OUTLINE


def chat_prompt(service: Service, request: ChatRequest) -> Prompt:
    """Raises `RequestError` for a request that can't be served."""
    fields = _checked_fields(service, request)
    tools = tool_definitions(request.tools)
    asked = _constraint(request)
    use = ToolUse("none", service.tool_format)
    if tools:
        use = tool_use(calls_wanted("auto", tools, True), service.tool_format, asked)
    grammar = enforced_as_asked(use.grammar or asked, fields, service.config)
    conversation = chat_conversation(request)
    text, outline, _ = rendered(service.template, conversation, tools)
    return Prompt(text, fields, grammar, use, continues=conversation.continues_last, outline=outline)


def generate_prompt(service: Service, request: GenerateRequest) -> Prompt:
    """Raises `RequestError` for a request that can't be served. A model without a chat template gets the
    prompt as it is."""
    fields = _checked_fields(service, request)
    if request.raw and (request.system or request.think):
        name = "system" if request.system else "think"
        raise RequestError(
            f"{name} has no effect with raw: write it into the prompt, or leave raw out.",
            param=name,
            code="invalid_value",
        )
    grammar = enforced_as_asked(_constraint(request), fields, service.config)
    use = ToolUse("none", service.tool_format)
    if request.raw or (service.template is None and not request.system):
        return Prompt(request.prompt or "", fields, grammar, use, is_raw=True)
    text, outline, _ = rendered(service.template, prompt_conversation(request), None)
    return Prompt(text, fields, grammar, use, outline=outline)


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
