"""What `tools` and `tool_choice` mean for a request's grammar and the reading of its reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from ...runtime.errors import RequestError
from ...runtime.messages import GrammarSpec, LeftOut
from ..text.answer_or_calls import AnswerOrCalls
from ..text.tokenizer import Tokenizer
from ..text.tool_calls import ToolCallParser, ToolFormat, check_against
from ..text.tool_grammar import (
    ToolError,
    calls_or_answer,
    check_formless,
    enforced_names,
    loosened_names,
    optional_calls,
    required_calls,
)
from .constraint import as_format
from .message_parser import ToolReader
from .protocol import ChatRequest, ToolChoice
from .validation import check_word

CHOICES = ("none", "auto", "required")
_NOT_BESIDE_CALLS = ("grammar", "structural_tag")


class ToolUse(NamedTuple):
    """`required`: the reply must be a call; `allowed`: it may have calls; `either`: it is calls or an answer
    that matches what the request asks of it. All match `grammar`.

    `finish_reason` is that of a reply with calls: OpenAI says "stop" if the caller named the function.
    """

    mode: Literal["required", "allowed", "either", "none"]
    format: ToolFormat
    tools: Sequence[dict[str, Any]] = ()
    grammar: GrammarSpec | None = None
    finish_reason: str = "tool_calls"

    def new_parser(self, left_out: Sequence[LeftOut], *, allowed: bool) -> ToolReader | None:
        """`left_out` is what the grammar doesn't enforce. If that is `allowed`, no call is held to it. Else
        calls are checked for it, but not for formats, of which the check knows no more."""
        if self.mode == "none":
            return None
        loosened = loosened_names([each.path for each in left_out if each.keyword != "format"])
        names = [tool["function"]["name"] for tool in self.tools]
        calls = ToolCallParser(
            self.format,
            check_against(self.tools, loosened if allowed else ()),
            enforced_names(self.tools, self.format, loosened),
            names=names,
            calls_only=self.mode == "required",
        )
        return AnswerOrCalls(calls, self.format, names) if self.mode == "either" else calls

    def shown_special(self, tokenizer: Tokenizer) -> frozenset[int]:
        return frozenset() if self.mode == "none" else self.format.shown_special(tokenizer)


def tool_use(
    request: ChatRequest, tools: list[dict[str, Any]] | None, format: ToolFormat, grammar: GrammarSpec | None
) -> ToolUse:
    """`grammar` is what the request's other fields constrain the reply to. Raises `RequestError`."""
    params = {
        tool["function"]["name"]: f"tools[{index}].function.parameters"
        for index, tool in enumerate(tools or ())
    }
    try:
        use = _tool_use(request, tools, format, grammar)
    except ToolError as error:
        raise RequestError(str(error), param=params[error.function], code="invalid_grammar") from None
    if use.grammar is None:
        return use
    return use._replace(grammar=msgspec.structs.replace(use.grammar, params=params))


def _tool_use(
    request: ChatRequest, tools: list[dict[str, Any]] | None, format: ToolFormat, grammar: GrammarSpec | None
) -> ToolUse:
    choice = request.tool_choice or "auto"
    if isinstance(choice, ToolChoice) and choice.type == "allowed_tools":
        choice, tools = _allowed(choice, tools or [])
    if isinstance(choice, str) and choice not in CHOICES:
        raise _wrong_choice(f"is {choice!r}, but must be one of {', '.join(CHOICES)}, or name a function")
    mode = "required" if not isinstance(choice, str) else choice
    if not tools and mode == "required":
        raise _wrong_choice("asks for a call, but there are no tools")
    if not tools or mode == "none":
        return ToolUse("none", format)
    several = request.parallel_tool_calls is not False
    if mode == "auto":
        return _optional(format, tools, grammar, several)
    if grammar is not None:
        raise _wrong_choice(
            f"asks for a call, which can't be used together with {grammar.param}: "
            "set it (or the mode of its allowed_tools) to 'auto', or leave one of them out"
        )
    if isinstance(choice, str):
        return ToolUse("required", format, tools, _spec(required_calls(format, tools, several=several)))
    named = [_named(choice, tools)]
    grammar = _spec(required_calls(format, named, several=False))
    return ToolUse("required", format, named, grammar, finish_reason="stop")


def _optional(
    format: ToolFormat, tools: list[dict[str, Any]], answer: GrammarSpec | None, several: bool
) -> ToolUse:
    check_formless(format, tools)
    if answer is None:
        return ToolUse("allowed", format, tools, _spec(optional_calls(format, tools, several=several)))
    calls_are_json = format.name == "llama_json" and answer.kind in ("json_schema", "json_object")
    if calls_are_json or answer.kind in _NOT_BESIDE_CALLS:
        why = ": this model's calls are JSON too" if calls_are_json else ""
        raise RequestError(
            f"{answer.param} can't be used together with tools that may be called{why}. "
            "Set tool_choice to 'none' or leave one of them out.",
            param=answer.param,
            code="invalid_value",
        )
    either = calls_or_answer(format, tools, as_format(answer), several=several)
    return ToolUse("either", format, tools, _spec(either, answer.param))


def _allowed(choice: ToolChoice, tools: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """How some of the tools may be called, and which. The prompt tells of all of them."""
    allowed = choice.allowed_tools
    if allowed is None:
        raise _missing("tool_choice.allowed_tools")
    if not allowed.tools:
        raise _wrong_choice("allows no tools")
    check_word("tool_choice.allowed_tools.mode", allowed.mode, ("auto", "required"))
    return allowed.mode, [_with_name(tool.function.name, tools) for tool in allowed.tools]


def _named(choice: ToolChoice, tools: list[dict[str, Any]]) -> dict[str, Any]:
    check_word("tool_choice.type", choice.type, ("function", "allowed_tools"))
    if choice.function is None:
        raise _missing("tool_choice.function")
    return _with_name(choice.function.name, tools)


def _with_name(name: str, tools: list[dict[str, Any]]) -> dict[str, Any]:
    for tool in tools:
        if tool["function"]["name"] == name:
            return tool
    known = ", ".join(tool["function"]["name"] for tool in tools)
    raise _wrong_choice(f'names the function "{name}", which is not among the tools ({known})')


def _spec(format: dict[str, Any], param: str = "tools") -> GrammarSpec:
    return GrammarSpec("structural_tag", msgspec.json.encode(format).decode(), param)


def _missing(param: str) -> RequestError:
    return RequestError(f"The required field {param} is missing.", param=param, code="missing_field")


def _wrong_choice(problem: str) -> RequestError:
    return RequestError(f"tool_choice {problem}.", param="tool_choice", code="invalid_value")
