"""Reads transformers' `response_template` of tokenizer_config.json as descriptions of reasoning and calls.

It has fields of a message, each with marks around its text, and a parser of that text.
"""

from __future__ import annotations

import logging
import re
import re._constants as op
import re._parser as parser
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..text.reasoning import ReasoningFormat
from .call_format import Form, Parameters, ToolFormat

_REASONING = ("reasoning_content", "thinking", "reasoning")
_REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)
log = logging.getLogger(__name__)


class DeclaredFormats(NamedTuple):
    reasoning: ReasoningFormat | None = None
    tools: ToolFormat | None = None


class _UnreadableError(Exception):
    """A part of the template that has no description here."""


def read_response_template(template: object) -> DeclaredFormats:
    """The formats that a `response_template` declares. The log says what can't be read."""
    fields = template.get("fields") if isinstance(template, dict) else None
    if not isinstance(template, dict) or not isinstance(fields, dict):
        return DeclaredFormats()
    reasoning = tools = None
    try:
        reasoning = _read_reasoning(template, fields)
        tools = _read_tools(fields["tool_calls"]) if "tool_calls" in fields else None
    except (
        _UnreadableError,
        re.error,
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
        RecursionError,
    ) as error:
        log.warning("the response_template of tokenizer_config.json is ignored where it has %s", error)
    return DeclaredFormats(reasoning, tools)


def _read_reasoning(template: Mapping[str, Any], fields: Mapping[str, Any]) -> ReasoningFormat | None:
    field = next((fields[name] for name in _REASONING if name in fields), None)
    if field is None:
        return None
    start, end = _mark(field, "open"), _mark(field, "close")
    content = fields.get("content") or {}
    found = ReasoningFormat(start, end, by_template=True)
    if "open" not in content and "open_pattern" not in content:
        return found
    answer, then = _mark(content, "open"), _mark(template, "start_anchor")
    silent = (then, answer, *_marks(content, "close"), end)
    return found._replace(then=then, answer=answer, silent=silent, repeats=True)


def _read_tools(field: Mapping[str, Any]) -> ToolFormat:
    syntax, arguments = field.get("content", "text"), field.get("content_args") or {}
    texts, names = _split(field, "open")
    opened, closed = (
        texts[0].lstrip(),
        _mark(field, "close") if "close" in field or "close_pattern" in field else "",
    )
    if names == ["name"]:
        return _read_named(opened, texts[1], closed, syntax, arguments)
    if names:
        raise _UnreadableError(f"the groups {names}")
    tags, closing_tag = tuple(_marks(field, "open")), closed.strip()
    if syntax == "python-call-list":
        form = Form(opened + "[", ("", "("), ")", "]" + closed, ", ")
        return ToolFormat("declared", form, tags, closing_tag, parameters=Parameters(("", "="), between=", "))
    if syntax != "json" or arguments.get("string_delims") or arguments.get("unquoted_keys"):
        raise _UnreadableError(f"the calls' content {syntax!r}")
    head = ('{"name": "', f'", "{_arguments_key(field.get("transform"))}": ')
    if field.get("transform_each"):
        return ToolFormat("declared", Form(opened + "[", head, "}", "]" + closed, ", "), tags, closing_tag)
    form = Form(f"{opened}\n", head, "}", f"\n{closed}")
    return ToolFormat("declared", form, tags, closing_tag, between_bodies=_between_bodies(field))


def _read_named(
    before: str, after: str, closed: str, syntax: str, arguments: Mapping[str, Any]
) -> ToolFormat:
    """Calls whose name stands in their opening mark."""
    *tail, closing_tag = re.split(r"(?<=>)\n", closed)
    tag, *rest = re.split(r"(?<=>)\n", before)
    prefix, head = (f"{tag}\n", "\n".join(rest)) if rest else ("", before)
    suffix = f"\n{closing_tag}" if tail else closing_tag
    found = ToolFormat(
        "declared",
        Form(prefix, (head, after), "\n".join(tail), suffix),
        (tag,),
        closing_tag,
        between_bodies="\n",
    )
    if syntax == "xml-inline":
        return found._replace(parameters=_read_elements(arguments))
    if syntax != "json":
        raise _UnreadableError(f"the calls' content {syntax!r}")
    delimiters = arguments.get("string_delims")
    if not delimiters:
        return found
    quote, other = delimiters[0]
    if quote != other or not arguments.get("unquoted_keys"):
        raise _UnreadableError("strings with two different marks")
    braced = found.form._replace(head=(head, after + "{"), tail="}" + "\n".join(tail))
    parameters = Parameters(("", ":"), between=",", quote=quote)
    return found._replace(form=braced, parameters=parameters, separators=(",", ":"), between_bodies="")


def _read_elements(arguments: Mapping[str, Any]) -> Parameters:
    texts, names = _split_pattern(arguments["tag_pattern"])
    if names != ["key", "value"] or not texts[0].strip() or not texts[2].strip():
        raise _UnreadableError(f"the tag_pattern {arguments['tag_pattern']!r}")
    if arguments.get("value_parser") not in (None, {"name": "text"}) and not (
        (arguments["value_parser"].get("args") or {}).get("allow_non_json")
    ):
        raise _UnreadableError("a value_parser")
    return Parameters((texts[0].lstrip(), texts[1]), end=f"{texts[2]}\n", quote="")


def _arguments_key(transform: Any) -> str:
    """The key of a call's arguments in the JSON of the call."""
    function = transform.get("function") if isinstance(transform, dict) else None
    given = function.get("arguments") if isinstance(function, dict) else None
    return given.strip("{}").rpartition(".")[2] if isinstance(given, str) else "arguments"


def _between_bodies(field: Mapping[str, Any]) -> str | None:
    return "\n" if field.get("repeats") else None


def _marks(field: Mapping[str, Any], name: str) -> list[str]:
    """The literal texts of an opening or closing mark, or the shortest text of its pattern."""
    if name not in field:
        return [_mark(field, name)] if f"{name}_pattern" in field else []
    return list(field[name]) if isinstance(field[name], list) else [field[name]]


def _mark(field: Mapping[str, Any], name: str) -> str:
    texts, names = _split(field, name)
    if names:
        raise _UnreadableError(f"the groups {names}")
    return texts[0].strip() if f"{name}_pattern" in field else texts[0]


def _split(field: Mapping[str, Any], name: str) -> tuple[list[str], list[str]]:
    if f"{name}_pattern" in field:
        return _split_pattern(field[f"{name}_pattern"])
    given = field[name]
    return [given[0] if isinstance(given, list) else given], []


def _split_pattern(pattern: str) -> tuple[list[str], list[str]]:
    """The texts before, between and after the named groups of a pattern, and the groups' names. White space
    that may be missing becomes a line break."""
    parsed = parser.parse(pattern)
    group_names = {number: name for name, number in parsed.state.groupdict.items()}
    texts, names = [""], list[str]()
    for kind, value in parsed:
        if kind is op.SUBPATTERN and value[0] in group_names:
            names.append(group_names[value[0]])
            texts.append("")
        else:
            texts[-1] += _write(kind, value)
    return texts, names


def _write(kind: Any, value: Any) -> str:
    """A short text that this piece of a pattern matches."""
    match kind, value:
        case op.LITERAL, code:
            return chr(code)
        case op.SUBPATTERN, (None, _, _, inner):
            return "".join(_write(*each) for each in inner)
        case op.BRANCH, (_, branches):
            return "".join(_write(*each) for each in branches[0])
        case op.IN, [(op.CATEGORY, op.CATEGORY_SPACE), *_]:
            return "\n"
        case op.IN, [(op.LITERAL, code), *_]:
            return chr(code)
        case op.AT, _:
            return ""
        case repeated, (least, _, inner) if repeated in _REPEATS:
            text = "".join(_write(*each) for each in inner)
            return text if text.isspace() else text * int(least)
    raise _UnreadableError(f"{str(kind).lower()} in a pattern")
