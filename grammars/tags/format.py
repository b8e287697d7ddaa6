"""The formats that a structural tag is made of, as JSON.

Names and meanings of the types are those that xgrammar gave them; `keywords`, `grammar` and `thinking` are
for our own use.
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
    """`function` is the one whose arguments these are, `root` where the schema stands in its parameters. What
    can't be enforced is refused, or replaced by any object or any value. What is wrong is refused always."""

    json_schema: Raw
    separators: tuple[str, str] = (",", ":")
    function: str = ""
    otherwise: Literal["refuse", "object", "value"] = "refuse"
    root: str = "#"

    def named(self, path: str) -> str:
        """A path in the schema, behind the function's name and as its parameters have it."""
        return self.function + self.place(path)

    def place(self, path: str) -> str:
        """A path in the schema, as the function's parameters have it."""
        is_shared = path.startswith(SHARED_BY_MEMBERS)
        return path if is_shared else self.root + path.removeprefix("#")


class Member(Struct, frozen=True):
    name: str
    json_schema: Raw
    required: bool


class Keywords(Struct, tag="keywords", frozen=True):
    """`name=value` of each member in order, those not required may be left out; as of a Python call.

    For the rest see `JsonSchema`.
    """

    members: list[Member]
    separators: tuple[str, str]
    function: str = ""
    otherwise: Literal["refuse", "value"] = "refuse"

    def value(self, member: Member) -> JsonSchema:
        root = f"#/properties/{member.name}"
        return JsonSchema(member.json_schema, self.separators, self.function, self.otherwise, root)


class Regex(Struct, tag="regex", frozen=True):
    pattern: str


class Grammar(Struct, tag="grammar", frozen=True):
    """Lark or GBNF."""

    grammar: str


class AnyText(Struct, tag="any_text", frozen=True):
    """Up to the first place where what follows stands; special tokens may be in it."""


class Elements(Struct, tag="sequence", frozen=True):
    elements: list[Format]


class Or(Struct, tag="or", frozen=True):
    elements: list[Format]


class Tag(Struct, tag="tag", frozen=True):
    """`ends` are the texts that may end it."""

    begin: str
    content: Format
    ends: list[str]


class TriggeredTags(Struct, tag="triggered_tags", frozen=True):
    """Any text, in which a trigger begins one of the tags whose `begin` starts with it.

    `at_start` are tags that begin only where the text does, and behind another tag, there behind any of the
    `leads`. Their whole beginning is a trigger, with that of the first tag inside if they have some with a
    separator. With `at_least_one` a tag comes before any text, with `stop_after_first` nothing comes after.
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
    """`content`, behind any text up to `end` if the prompt `is_open`, or if `start` stands before it."""

    start: str
    end: str
    is_open: bool
    content: Format


Format: TypeAlias = Union[  # noqa: UP007  (the types name each other)
    ConstString,
    JsonSchema,
    Keywords,
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
    """All that are in it, in order."""
    match format:
        case JsonSchema():
            return [format]
        case Keywords(members):
            return [format.value(member) for member in members]
        case Elements(elements) | Or(elements):
            inner: list[Format] = list(elements)
        case Tag(_, content) | Thinking(_, _, _, content):
            inner = [content]
        case TriggeredTags(tags=tags, at_start=at_start):
            inner = [*tags, *at_start]
        case TagsWithSeparator(tags=tags):
            inner = list(tags)
        case _:
            inner = []
    return [schema for each in inner for schema in json_schemas(each)]
