"""The ways in which `answers.py` asks for an answer: a kind of constraint and fields of the request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from answer_tasks import Case, Schema, Task

Body = dict[str, Any]
STYLES = {"compact": (",", ":", ""), "spaced": (", ", ": ", ""), "indented": (",", ": ", "  ")}
"""separators and indentation of the JSON that a `regex` prescribes"""


class Mode(NamedTuple):
    """`kind [shown] [style=STYLE] [field=VALUE …]`; `shown` adds the schema to the prompt."""

    name: str
    kind: str
    is_shown: bool
    style: str
    fields: Body

    def body(self, task: Task, case: Case) -> Body | None:
        """The request for a case; None if the mode does not suit the task."""
        constraint = KINDS[self.kind](task, self.style)
        if constraint is None:
            return None
        messages = task.turns(case, self.kind == "tools")
        if self.is_shown:
            rule = {"role": "system", "content": _rule(task)}
            messages = [rule, *messages]
        body = {"messages": messages, "temperature": 0, "max_tokens": task.max_tokens}
        return {**body, **constraint, **self.fields}


def parse_mode(text: str) -> Mode:
    """Raises ValueError with what is wrong."""
    kind, *words = text.split()
    if kind not in KINDS:
        raise ValueError(f"{text!r} must begin with one of {', '.join(KINDS)}")
    options = dict(word.partition("=")[::2] for word in words)
    is_shown = options.pop("shown", None) is not None
    style = options.pop("style", "spaced")
    if style not in STYLES:
        raise ValueError(f"style={style} in {text!r} must be one of {', '.join(STYLES)}")
    return Mode(text, kind, is_shown, style, {name: _value(said) for name, said in options.items()})


def _value(said: str) -> Any:
    try:
        return json.loads(said)
    except ValueError:
        return said


def _rule(task: Task) -> str:
    if task.choices:
        return f"Answer with one of: {', '.join(task.choices)}."
    return f"Answer with JSON that matches this schema: {json.dumps(task.schema)}"


def _structured(name: str, constraint: Any) -> Body:
    """In the field that Arbora and vLLM share."""
    return {"structured_outputs": {name: constraint}}


def _free(task: Task, style: str) -> Body:
    return {}


def _json_schema(task: Task, style: str) -> Body:
    form = {"name": "answer", "schema": task.schema}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def _json_object(task: Task, style: str) -> Body | None:
    return None if task.choices else {"response_format": {"type": "json_object"}}


def _regex(task: Task, style: str) -> Body:
    if task.choices:
        return _structured("regex", "|".join(re.escape(choice) for choice in task.choices))
    return _structured("regex", regex_of(task.schema, STYLES[style]))


def _grammar(task: Task, style: str) -> Body:
    return _structured("grammar", f"start: %json {json.dumps(task.schema)}")


def _choice(task: Task, style: str) -> Body | None:
    return _structured("choice", list(task.choices)) if task.choices else None


def _tools(task: Task, style: str) -> Body | None:
    return {"tools": list(task.tools)} if task.tools else None


KINDS: dict[str, Callable[[Task, str], Body | None]] = {
    "free": _free,
    "json_schema": _json_schema,
    "json_object": _json_object,
    "regex": _regex,
    "grammar": _grammar,
    "choice": _choice,
    "tools": _tools,
}

_TYPES = {
    "string": r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])*"',
    "integer": r"-?(?:0|[1-9]\d*)",
    "number": r"-?(?:0|[1-9]\d*)(?:\.\d+)?",
    "boolean": "(?:true|false)",
    "null": "null",
}


def regex_of(schema: Schema, style: tuple[str, str, str], depth: int = 0) -> str:
    """A regex for the schema's values in a style of white space; it knows the keywords that the tasks use."""
    comma, colon, indent = style
    within = "\n" + indent * (depth + 1) if indent else ""
    after = "\n" + indent * depth if indent else ""
    if "const" in schema or "enum" in schema:
        return _either([re.escape(json.dumps(value)) for value in schema.get("enum", [schema.get("const")])])
    if "anyOf" in schema:
        return _either([regex_of(part, style, depth) for part in schema["anyOf"]])
    if schema["type"] == "object":
        members = (
            f'"{re.escape(name)}"{colon}{regex_of(part, style, depth + 1)}'
            for name, part in schema["properties"].items()
        )
        return r"\{" + within + f"{comma}{within}".join(members) + after + r"\}"
    if schema["type"] == "array":
        item = regex_of(schema["items"], style, depth + 1)
        return rf"\[(?:{within}{item}(?:{comma}{within}{item})*{after})?\]"
    if schema.get("format") == "date":
        return r'"\d{4}-\d{2}-\d{2}"'
    return _TYPES[schema["type"]]


def _either(patterns: list[str]) -> str:
    return f"(?:{'|'.join(patterns)})"
