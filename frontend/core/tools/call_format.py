"""Descriptions of the ways in which model families write tool calls. Parser and grammar are made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..text.reasoning import find_special
from ..text.tokenizer import Tokenizer

PYTHON_WORDS = {"true": "True", "false": "False", "null": "None"}
_SPACED_PARTS = re.compile(r'(?P<text>"(?:[^"\\]|\\.)*")|\s*(?P<mark>[,:])\s*|\s+')
"""Matches a JSON string, or a separator with the white space around it."""


class Parameters(NamedTuple):
    """Arguments that are not one JSON object: each is its name between the parts of `name`, its value, and
    `end`, with `between` between two of them.

    Strings stand between two `quote` marks, also inside of objects, whose keys then have no quotes; with an
    empty `quote` a parameter's string is written as it is, and with None as JSON. Every other value is JSON.
    `typed` replaces the second part of `name` before a value that is not a string. `is_python`: true, false
    and null are Python's words. `is_sorted`: parameters and members come in the order of their names.
    """

    name: tuple[str, str]
    end: str = ""
    between: str = ""
    quote: str | None = None
    typed: str = ""
    is_python: bool = False
    is_sorted: bool = False

    @property
    def is_raw(self) -> bool:
        return self.quote == ""


class CallId(NamedTuple):
    """The number that the model writes after a function's name: `mark`, then a text that `pattern` matches.
    The call's id is `id` with the name and the number."""

    mark: str
    pattern: str
    id: str


class Form(NamedTuple):
    """One way to write calls: `prefix`, one or more calls with `between` between them, `suffix`. A call is
    the function's name between the parts of `head`, its arguments, and `tail`.

    Several calls may follow a prefix only if `between` is not None.
    """

    prefix: str
    head: tuple[str, str]
    tail: str
    suffix: str
    between: str | None = None

    def begin(self, function: str) -> str:
        """The text before a call's arguments."""
        before, after = self.head
        return f"{before}{json.dumps(function, ensure_ascii=False)[1:-1] if before else function}{after}"


class ToolFormat(NamedTuple):
    """How a family's models write calls.

    `form` is how the chat template writes them, `others` are further forms that models may use. Any of `tags`
    begins a body of calls, and so does `bracket` alone at the start of a reply and after calls. `closing_tag`
    may follow a body. `between_bodies` stands between two bodies; None if a reply has only one.

    Arguments are a JSON object with the item and key `separators`, or `parameters`. With `call_id` the first
    part of the form's head comes before the name, then the id, then the second part.
    """

    name: str
    form: Form
    tags: tuple[str, ...]
    closing_tag: str = ""
    bracket: str = ""
    between_bodies: str | None = None
    parameters: Parameters | None = None
    separators: tuple[str, str] = (", ", ": ")
    call_id: CallId | None = None
    others: tuple[Form, ...] = ()
    id_length: int = 0  # letters of a random call id; 0: a prefix and 24 letters

    @property
    def forms(self) -> tuple[Form, ...]:
        return (self.form, *self.others)

    @property
    def is_json(self) -> bool:
        """Whether a whole call is a JSON object."""
        return self.form.head[0].startswith("{")

    def tag_of(self, form: Form) -> str | None:
        """The tag with which the form begins; None if it begins without one."""
        return next((tag for tag in self.tags if (form.prefix + form.head[0]).startswith(tag)), None)

    def write(self, calls: Iterable[tuple[str, str | Mapping[str, Any]]]) -> str:
        """The text of calls, each a name and its arguments. JSON text that is no object stays as it is.

        Only for formats without ids.
        """
        form = self.form
        bodies = [f"{form.begin(name)}{self._write_arguments(given)}{form.tail}" for name, given in calls]
        if form.between is not None:
            return f"{form.prefix}{form.between.join(bodies)}{form.suffix}"
        return (self.between_bodies or "").join(f"{form.prefix}{body}{form.suffix}" for body in bodies)

    def _write_arguments(self, given: str | Mapping[str, Any]) -> str:
        item, key = self.separators
        found = parse_object(given) if isinstance(given, str) else given
        if self.parameters is not None and found is not None:
            return self._write_parameters(self.parameters, found)
        if not isinstance(given, str):
            return json.dumps(given, ensure_ascii=False, separators=self.separators)
        if found is None:
            return given

        def space(part: re.Match[str]) -> str:
            return part["text"] or {",": item, ":": key}.get(part["mark"], "")

        return _SPACED_PARTS.sub(space, given)

    def _write_parameters(self, syntax: Parameters, given: Mapping[str, Any]) -> str:
        before, after = syntax.name
        names = sorted(given, key=str.lower) if syntax.is_sorted else list(given)
        written = (
            f"{before}{name}{after if isinstance(given[name], str) else syntax.typed or after}"
            f"{self._write_value(syntax, given[name])}{syntax.end}"
            for name in names
        )
        return syntax.between.join(written)

    def _write_value(self, syntax: Parameters, value: Any) -> str:
        if isinstance(value, str) and syntax.quote is not None:
            return f"{syntax.quote}{value}{syntax.quote}"
        if syntax.quote and isinstance(value, list):
            return f"[{','.join(self._write_value(syntax, each) for each in value)}]"
        if syntax.quote and isinstance(value, dict):
            return f"{{{self._write_parameters(syntax, value)}}}"
        text = json.dumps(value, ensure_ascii=False, separators=self.separators)
        return PYTHON_WORDS.get(text, text) if syntax.is_python else text

    def shown_special(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Special tokens that the detokenizer must not skip when a request has tools."""
        quote = self.parameters.quote if self.parameters is not None else None
        texts = [*self.tags, self.closing_tag, quote or "", self.call_id.mark if self.call_id else ""]
        texts += [part for form in self.forms for part in (form.prefix, *form.head, form.tail, form.suffix)]
        return find_special("\0".join(texts), tokenizer)


def parse_object(text: str) -> dict[str, Any] | None:
    """Parses a JSON object. None for any other text."""
    value = parse_json(text)
    return value if isinstance(value, dict) else None


def parse_json(text: str) -> object:
    """Parses a JSON value. None for text that is not valid JSON, such as NaN and Infinity."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")
