"""Turns a request's tools into the grammar of its reply and the reader of its calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec

from ...runtime.errors import RequestError
from ...runtime.messages import GrammarSpec, LeftOutKeyword
from .constraint import as_format
from .text.tokenizer import Tokenizer
from .tools.call_arguments import ParameterTypes
from .tools.call_format import ToolFormat
from .tools.parameter_grammar import parameter_types
from .tools.reply_parser import ToolReading
from .tools.schema_keywords import misspelt_keywords
from .tools.tool_check import check_against
from .tools.tool_grammar import (
    ToolError,
    build_calls_or_answer,
    build_optional_calls,
    build_required_calls,
    check_unenforceable,
    find_enforced,
    find_partly_enforced,
)
from .validation import invalid_field

_NOT_BESIDE_CALLS = ("grammar", "structural_tag")


class CallsWanted(NamedTuple):
    """Whether a reply may ("auto"), must ("required") or can't ("none") call tools.

    `tools` are the definitions of the tools that it may call. `several`: more than one call may come.
    `params` maps a function's name to the request's field with its schema, for errors.
    """

    mode: Literal["auto", "required", "none"]
    tools: Sequence[dict[str, Any]] = ()
    several: bool = True
    params: Mapping[str, str] = MappingProxyType({})


class ToolUse(NamedTuple):
    """How a reply uses tools. `required`: it must be a call. `allowed`: it may have calls. `either`: it is
    calls or an answer that matches the request's constraint. `grammar` enforces all three."""

    mode: Literal["required", "allowed", "either", "none"]
    format: ToolFormat
    tools: Sequence[dict[str, Any]] = ()
    grammar: GrammarSpec | None = None
    types: Mapping[str, ParameterTypes] = MappingProxyType({})

    def make_reading(self, left_out: Sequence[LeftOutKeyword], *, allowed: bool) -> ToolReading | None:
        """How to find the reply's calls; None if it has none. The grammar doesn't enforce the keywords
        `left_out`. Unless `allowed`, complete calls are checked for these keywords, except for formats, which
        the check ignores too."""
        if self.mode == "none":
            return None
        loosened = find_partly_enforced([each.path for each in left_out if each.keyword != "format"])
        functions = [tool["function"] for tool in self.tools]
        return ToolReading(
            self.format,
            check_against(self.tools, loosened if allowed else ()),
            find_enforced(self.tools, self.format, loosened),
            names=[function["name"] for function in functions],
            calls_only=self.mode == "required",
            may_answer=self.mode == "either",
            types=self.types,
        )

    def shown_special(self, tokenizer: Tokenizer) -> frozenset[int]:
        return frozenset() if self.mode == "none" else self.format.shown_special(tokenizer)


def tool_use(
    wanted: CallsWanted, format: ToolFormat, grammar: GrammarSpec | None, answer: str = ""
) -> ToolUse:
    """Combines tools and `grammar`, the request's constraint on an answer, which begins with `answer`. Raises
    `RequestError` for tools that can't be served."""
    try:
        use = _tool_use(wanted, format, grammar, answer)
    except ToolError as error:
        raise RequestError(str(error), param=wanted.params[error.function], code="invalid_grammar") from None
    if use.grammar is None:
        return use
    misspelt = (*(grammar.misspelt if grammar else ()), *_misspelt(use.tools, wanted.params))
    spec = msgspec.structs.replace(use.grammar, misspelt=misspelt, params=dict(wanted.params))
    if grammar is not None:
        spec = msgspec.structs.replace(
            spec, whitespace=grammar.whitespace, additional_properties=grammar.additional_properties
        )
    functions = [tool["function"] for tool in use.tools] if format.parameters is not None else []
    types = {function["name"]: parameter_types(function.get("parameters")) for function in functions}
    return use._replace(grammar=spec, types=types)


def _misspelt(tools: Sequence[dict[str, Any]], params: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(keyword, path) for each keyword of the tools' parameters that may be misspelt. A path begins with the
    function's name."""
    for tool in tools:
        name = tool["function"]["name"]
        found = misspelt_keywords(tool["function"].get("parameters"), params.get(name, "tools"))
        yield from ((keyword, name + path) for keyword, path in found)


def _tool_use(wanted: CallsWanted, format: ToolFormat, grammar: GrammarSpec | None, answer: str) -> ToolUse:
    tools = wanted.tools
    if not tools or wanted.mode == "none":
        return ToolUse("none", format)
    if wanted.mode == "auto":
        return _optional(format, tools, grammar, wanted.several, answer)
    if grammar is not None:
        raise invalid_field(
            "tool_choice",
            f"asks for a call, which can't be used together with {grammar.param}: "
            "set it (or the mode of its allowed_tools) to 'auto', or leave one of them out",
        )
    calls = build_required_calls(format, tools, several=wanted.several)
    return ToolUse("required", format, tools, _spec(calls))


def _optional(
    format: ToolFormat, tools: Sequence[dict[str, Any]], answer: GrammarSpec | None, several: bool, begin: str
) -> ToolUse:
    check_unenforceable(format, tools)
    if answer is None:
        return ToolUse("allowed", format, tools, _spec(build_optional_calls(format, tools, several=several)))
    calls_are_json = format.name == "llama_json" and answer.kind in ("json_schema", "json_object")
    if calls_are_json or answer.kind in _NOT_BESIDE_CALLS:
        why = ": this model's calls are JSON too" if calls_are_json else ""
        raise invalid_field(
            answer.param,
            f"can't be used together with tools that may be called{why}. "
            "Set tool_choice to 'none' or leave one of them out",
        )
    text = as_format(answer)
    begun = {"type": "tag", "begin": begin, "content": text, "ends": [""]} if begin else text
    either = build_calls_or_answer(format, tools, begun, several=several)
    return ToolUse("either", format, tools, _spec(either, answer.param))


def _spec(format: dict[str, Any], param: str = "tools") -> GrammarSpec:
    return GrammarSpec("structural_tag", msgspec.json.encode(format).decode(), param)
