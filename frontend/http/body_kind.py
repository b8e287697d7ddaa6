"""Describes request bodies: their types, and tables of the field names that need checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from ...runtime.errors import RequestError
from ...runtime.type_mismatch import SHOWN_CHARACTERS

T = TypeVar("T", bound=msgspec.Struct)

READ_BYTES = 400  # bytes of a field's value that are compared; all values in the tables are shorter
_NOTHING = ("[]", "{}", '""', "false")  # values by which a client asks for nothing


class FixedField(NamedTuple):
    """A field that may only ask for the server's usual behaviour, by one of the JSON texts `values`."""

    values: tuple[str, ...] = ()
    instead: str = "Leave it out."

    def asks_for_more(self, text: str) -> bool:
        return text != "null" and text.replace(" ", "") not in self.values

    def check(self, name: str, value: bytes) -> None:
        """Raises a `RequestError` that names the field, its value and what to use."""
        text = _text(value)
        if not self.asks_for_more(text):
            return
        shown = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
        served = [value for value in self.values if value not in _NOTHING]
        problem = f"but only {' or '.join(served)} is supported" if served else "which is not supported"
        message = f"{name} is {shown}, {problem}. {self.instead}"
        raise RequestError(message, param=name, code="unsupported_parameter")


@dataclass(frozen=True)
class InertFields:
    """Known fields without effect. `fixed` fields are refused with unusual values. `hints` are ignored with
    one warning in the log. Fields `without_effect` never change a reply."""

    fixed: Mapping[str, FixedField] = field(default_factory=dict)
    hints: Mapping[str, FixedField] = field(default_factory=dict)
    without_effect: Collection[str] = ()

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset((*self.fixed, *self.hints, *self.without_effect))

    def check(self, name: str, value: bytes) -> str | None:
        """The advice to log for this field. Raises `RequestError` for a value that can't be served."""
        if name in self.fixed:
            self.fixed[name].check(name, value)
        elif name in self.hints and self.hints[name].asks_for_more(_text(value)):
            return self.hints[name].instead
        return None


def _text(value: bytes) -> str:
    return " ".join(value[:READ_BYTES].decode(errors="replace").split())


class Binding(NamedTuple):
    """The binding fields of an object: a reply would be wrong if a misspelt field were ignored.

    `instead` maps other servers' names to the fields that mean the same here. `all_bind`: all fields of the
    object bind the reply, so every unknown text, list or object in it may be a misspelt one. `only_known`:
    every unknown name in it is an error.
    """

    names: Collection[str]
    instead: Mapping[str, str] = MappingProxyType({})
    all_bind: bool = False
    only_known: bool = False


Bindings: TypeAlias = Mapping[type[msgspec.Struct], Binding]
"""The binding fields of a body's type and of the types of objects in it."""


@dataclass(frozen=True)
class BodyKind(Generic[T]):
    """The schema of an endpoint's body, its `inert` fields and its `binding` ones.

    `elsewhere` maps fields of other endpoints to the paths to name in the error.
    """

    struct: type[T]
    inert: InertFields = InertFields()
    binding: Bindings = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def decoder(self) -> msgspec.json.Decoder[T]:
        return msgspec.json.Decoder(self.struct)

    @cached_property
    def required(self) -> list[str]:
        return [each.name for each in msgspec.structs.fields(self.struct) if each.required]


CONSTRAINTS = (
    "regex",
    "choice",
    "grammar",
    "additional_properties",
    "property_order",
    "whitespace",
    "unenforced",
    "complete_json",
)
"""Fields that constrain a reply in every API."""


def constraints_elsewhere(schema: str) -> dict[str, str]:
    """Other servers' names of constraints, with our fields. `schema` is our field with a JSON schema."""
    return {
        **dict.fromkeys(("response_format", "json_schema", "guided_json", "schema"), schema),
        **dict.fromkeys(("guided_regex", "pattern"), "regex"),
        "guided_choice": "choice",
        **dict.fromkeys(("guided_grammar", "ebnf", "gbnf", "lark"), "grammar"),
    }


def parameters_elsewhere(parameters: str) -> dict[str, str]:
    """Other servers' names of a tool's `parameters`."""
    schemas = ("parameters", "input_schema", "inputSchema", "schema", "json_schema")
    return {name: parameters for name in (*schemas, "params", "args", "arguments") if name != parameters}
