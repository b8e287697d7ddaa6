"""The prompt and the constraint of a request, for /v1/responses and for counting its tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from ....runtime.messages import GrammarSpec
from ...api.openai.cache_fields import MARK, lease_seconds
from ...core.draft import Beginning, Prompt
from ...core.grammar_fields import (
    is_null,
    object_spec,
    one_spec,
    schema_spec,
    text_specs,
)
from ...core.leases import check_breakpoints
from ...core.messages import ChatMessage, Conversation
from ...core.requested_tools import CallsWanted
from ...core.service import Service
from ...core.validation import check_word, invalid_field, missing_field
from .items import check_items, messages_of
from .protocol import FORMATS, Item, PromptFields, ResponsesRequest, TextFormat
from .reasoning import check_variables, read_variables
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
    return Conversation(messages, variables=read_variables(request))


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
            raise invalid_field(
                "text.format.schema",
                f"has no effect, as text.format.type is {format.type!r}: make the type "
                "'json_schema', or leave schema out",
            )
        return object_spec(format.type == "json_object", "text.format")
    if not format.name:
        raise missing_field("text.format.name")
    if given is None:
        raise missing_field("text.format.schema")
    return schema_spec(given, "text.format.schema")


class _Mark(NamedTuple):
    """A cache breakpoint at part number `place` of an item's `field`."""

    item: int
    field: str
    place: int
    mode: str | None


def items_to_breakpoints(items: Sequence[Item]) -> list[Sequence[Item]]:
    """The items up to each breakpoint. Raises `RequestError`."""
    marks = list(_marks(items))
    check_breakpoints(MARK, len(marks))
    found: list[Sequence[Item]] = []
    for number, field, place, mode in marks:
        check_word(f"input[{number}].{field}[{place}].{MARK}.mode", mode, ("explicit",))
        item = items[number]
        cut = replace(item, **{field: getattr(item, field)[: place + 1]})
        found.append([*items[:number], cut])
    return found


def _marks(items: Sequence[Item]) -> Iterator[_Mark]:
    for number, item in enumerate(items):
        for field, parts in (("content", item.content), ("output", item.output)):
            for place, part in enumerate(parts if isinstance(parts, list) else ()):
                if part.prompt_cache_breakpoint is not None:
                    yield _Mark(number, field, place, part.prompt_cache_breakpoint.mode)
