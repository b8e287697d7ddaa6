"""The formats that make up a structural tag, as JSON.

The types have xgrammar's names and meanings; `text`, `members`, `grammar` and `thinking` are our own
additions.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, Union

import msgspec
from msgspec import Raw, Struct

from ..errors import GrammarError

SHARED_BY_MEMBERS = ("#/$defs/", "#/definitions/")


class ConstString(Struct, tag="const_string", frozen=True):
    value: str


class JsonSchema(Struct, tag="json_schema", frozen=True):
    """The arguments of `function`. `root` is the schema's position in the function's parameters. A schema
    that can't be enforced is refused, or replaced by any object or any value. A wrong schema is always
    refused. Without `separators` the request says which white space the value has."""

    json_schema: Raw
    separators: tuple[str, str] | None = None
    function: str = ""
    otherwise: Literal["refuse", "object", "value"] = "refuse"
    root: str = "#"

    def named(self, path: str) -> str:
        """The function's name, and the path in its parameters that corresponds to a path in the schema."""
        return self.function + self.place(path)

    def place(self, path: str) -> str:
        """The path in the function's parameters that corresponds to a path in the schema."""
        is_shared = path.startswith(SHARED_BY_MEMBERS)
        return path if is_shared else self.root + path.removeprefix("#")


class Text(JsonSchema, tag="text", frozen=True):
    """The text of a string that matches the schema, without quotes and escapes. A fixed text must follow it:
    it ends the text where it first occurs."""


class Member(Struct, frozen=True):
    """A tag of `Members`, as `begin`, the content and `end`."""

    begin: str
    content: Format
    end: str
    required: bool


class Members(Struct, tag="members", frozen=True):
    """The members in order, with the separator between two of them; optional ones may be missing."""

    members: list[Member]
    separator: str


class Regex(Struct, tag="regex", frozen=True):
    pattern: str


class Grammar(Struct, tag="grammar", frozen=True):
    """A grammar in Lark or GBNF."""

    grammar: str


class AnyText(Struct, tag="any_text", frozen=True):
    """Any text up to the first occurrence of the next format. It may contain special tokens."""


class Elements(Struct, tag="sequence", frozen=True):
    elements: list[Format]


class Or(Struct, tag="or", frozen=True):
    elements: list[Format]


class Tag(Struct, tag="tag", frozen=True):
    """The text `begin`, the content, and one of the texts `ends`."""

    begin: str
    content: Format
    ends: list[str]


class TriggeredTags(Struct, tag="triggered_tags", frozen=True):
    """Free text with tags in it: a trigger in the text begins one of the tags whose `begin` starts with it.

    The tags `at_start` begin only at the start of the text, and after another tag if one of the `leads` comes
    between. Each is triggered by its whole `begin`. If its content is tags with a separator, the trigger is
    its `begin` followed by the `begin` of one of these. With `at_least_one` the text begins with a tag; with
    `stop_after_first` it ends after the first tag.
    """

    triggers: list[str]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False
    at_start: list[Tag] = []
    leads: tuple[str, ...] = ("",)


class TagsWithSeparator(Struct, tag="tags_with_separator", frozen=True):
    tags: list[Tag]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


class Thinking(Struct, tag="thinking", frozen=True):
    """An optional thought, then `content`. The thought is any text up to `end`. It begins with `start`, or in
    the prompt if `is_open`. After a thought `then` comes before the content, unless that is free text. The
    content itself begins with `begin`."""

    start: str
    end: str
    is_open: bool
    content: Format
    then: str = ""
    begin: str = ""


Format: TypeAlias = Union[  # noqa: UP007  (the types name each other)
    ConstString,
    JsonSchema,
    Text,
    Members,
    Regex,
    Grammar,
    AnyText,
    Elements,
    Or,
    Tag,
    TriggeredTags,
    TagsWithSeparator,
    Thinking,
]

_decoder: msgspec.json.Decoder[Format] = msgspec.json.Decoder(Format)


def read_format(text: str) -> Format:
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError as error:
        raise GrammarError(f"the structural tag can't be read: {error}") from None
    except RecursionError:
        raise GrammarError("the structural tag can't be read: its formats are nested too deep") from None


def json_schemas(format: Format) -> list[JsonSchema]:
    """All schemas in the format, in order."""
    match format:
        case JsonSchema():
            return [format]
        case Members(members):
            inner: list[Format] = [member.content for member in members]
        case Elements(elements) | Or(elements):
            inner = list(elements)
        case Tag(_, content) | Thinking(_, _, _, content):
            inner = [content]
        case TriggeredTags(tags=tags, at_start=at_start):
            inner = [*tags, *at_start]
        case TagsWithSeparator(tags=tags):
            inner = list(tags)
        case _:
            inner = []
    return [schema for each in inner for schema in json_schemas(each)]
