"""The prompt and the constraint of a request, for /v1/messages and for counting its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ....runtime.errors import RequestError
from ....runtime.messages import GrammarSpec
from ...core.draft import Prompt
from ...core.grammar_fields import one_spec, schema_spec, text_specs
from ...core.requested_tools import CallsWanted
from ...core.service import Service
from ...core.validation import check_word, invalid_field, missing_field
from .breakpoints import beginnings_of
from .conversation import conversation_of
from .protocol import ContextEdit, MessagesRequest, OutputFormat, PromptRequest
from .thinking import check_thinking
from .tools import calls_wanted, definitions

CLEARS_THINKING = "clear_thinking_20251015"
EDITS = (CLEARS_THINKING, "clear_tool_uses_20250919", "compact_20260112")


def read_prompt(service: Service, request: PromptRequest) -> Prompt:
    """The prompt of a request. Raises `RequestError` for a request that can't be served."""
    check_thinking(request)
    if request.context_management is not None:
        _check_edits(request.context_management.edits or ())
    return Prompt(
        param="messages",
        conversation=conversation_of(request),
        tools=definitions(request.tools),
        beginnings=beginnings_of(request) if isinstance(request, MessagesRequest) else (),
    )


def read_calls(
    request: PromptRequest, tools: list[dict[str, Any]] | None, constraint: GrammarSpec | None
) -> CallsWanted:
    """The calls that a reply may have. Raises `RequestError` if they conflict with the constraint."""
    calls = calls_wanted(request, tools)
    if constraint is not None and calls.mode == "required":
        raise RequestError(
            f"{constraint.param} can't be used together with a tool_choice that asks for a call: set "
            "tool_choice.type to 'auto', or leave one of them out.",
            param="tool_choice",
            code="invalid_value",
        )
    return calls


def read_constraint(request: PromptRequest) -> GrammarSpec | None:
    """The constraint on an answer without calls, or None."""
    output = request.output_config
    older = _schema(request.output_format, "output_format")
    newer = _schema(None if output is None else output.format, "output_config.format")
    return one_spec([older, newer, *text_specs(request)])


def _schema(format: OutputFormat | None, where: str) -> GrammarSpec | None:
    if format is None:
        return None
    if format.type != "json_schema":
        raise invalid_field(f"{where}.type", f"is {format.type!r}, but must be 'json_schema'")
    schema = schema_spec(format.schema, f"{where}.schema")
    if schema is None:
        raise missing_field(f"{where}.schema")
    return schema


def _check_edits(edits: Sequence[ContextEdit]) -> None:
    """Raises `RequestError` for an edit that would remove a part of the conversation from the prompt."""
    for index, edit in enumerate(edits):
        where = f"context_management.edits[{index}]"
        check_word(f"{where}.type", edit.type, EDITS)
        if edit.type == CLEARS_THINKING and _keeps_all(edit):
            continue
        if edit.type == CLEARS_THINKING:
            problem, advice = f"{where} would clear the thinking of earlier turns", "set keep to 'all'"
        else:
            problem, advice = f"{where}.type is {edit.type!r}", "leave it out"
        raise RequestError(
            f"{problem}, but this server edits no conversation: {advice}, or edit it in the client.",
            param=where,
            code="unsupported_parameter",
        )


def _keeps_all(edit: ContextEdit) -> bool:
    keep: Any = msgspec.json.decode(edit.keep)
    return keep == "all" or (isinstance(keep, dict) and keep.get("type") == "all")
