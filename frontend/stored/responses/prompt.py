"""The prompt and the constraint of a request, for /v1/responses and for counting its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from ....runtime.errors import RequestError
from ....runtime.messages import GrammarSpec
from ...api.openai.cache_fields import lease_seconds
from ...core.draft import Beginning, Prompt
from ...core.grammar_fields import (
    is_null,
    object_spec,
    one_spec,
    schema_spec,
    text_specs,
)
from ...core.messages import ChatMessage, Conversation
from ...core.requested_tools import CallsWanted
from ...core.service import Service
from ...core.validation import check_word, missing_field
from .breakpoints import items_to_breakpoints
from .items import check_items, messages_of
from .protocol import FORMATS, Item, PromptFields, ResponsesRequest, TextFormat
from .reasoning import check_variables, template_variables
from .tool_choice import calls_wanted
from .tools import offered_tools


def read_prompt(
    service: Service, request: PromptFields, earlier: Sequence[Item], own: Sequence[Item]
) -> tuple[Prompt, CallsWanted]:
    """The prompt of the `earlier` items and the request's `own`, and the calls that its reply may have.

    Raises `RequestError` for a request that can't be served.
    """
    check_variables(request)
    check_word("truncation", request.truncation, ("auto", "disabled"))
    check_items(own)
    offered = offered_tools(request.tools)
    calls = calls_wanted(request.tool_choice, offered, request.parallel_tool_calls)
    conversation = _conversation(service, request, [*earlier, *own])
    beginnings = []
    if isinstance(request, ResponsesRequest):
        ttl_s = lease_seconds(request)
        for each in items_to_breakpoints(own):
            part = _conversation(service, request, [*earlier, *each])
            beginnings.append(Beginning(part, offered.printed, ttl_s))
    prompt = Prompt(param="input", conversation=conversation, tools=offered.printed, beginnings=beginnings)
    return prompt, calls


def _conversation(service: Service, request: PromptFields, items: Sequence[Item]) -> Conversation:
    messages = list(messages_of(items, service.tool_format.separators))
    if request.instructions:
        messages.insert(0, ChatMessage(role="system", content=request.instructions))
    if not messages:
        raise missing_field("input")
    return Conversation(messages, variables=template_variables(request))


def read_constraint(request: PromptFields) -> GrammarSpec | None:
    """The constraint on an answer without calls, or None."""
    own = _format(None if request.text is None else request.text.format)
    return one_spec([own, *text_specs(request)])


def _format(format: TextFormat | None) -> GrammarSpec | None:
    if format is None:
        return None
    check_word("text.format.type", format.type, FORMATS)
    given = None if format.schema is UNSET or is_null(format.schema) else format.schema
    if format.type != "json_schema":
        if given is not None:
            raise RequestError(
                f"text.format.schema has no effect, as text.format.type is {format.type!r}: make the type "
                "'json_schema', or leave schema out.",
                param="text.format.schema",
                code="invalid_value",
            )
        return object_spec(format.type == "json_object", "text.format")
    if not format.name:
        raise missing_field("text.format.name")
    if given is None:
        raise missing_field("text.format.schema")
    return schema_spec(given, "text.format.schema")
