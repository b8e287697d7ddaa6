"""The kinds of request bodies: their types, and the names in them that have a check of their own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)

FieldCheck: TypeAlias = Callable[[bytes], str | None]
"""Takes the JSON of a field that has no effect. Returns what to log once, or raises `RequestError`."""


class Binding(NamedTuple):
    """The binding fields of an object: a reply would be wrong if a misspelt one were ignored.

    `instead` maps other servers' names to the fields that mean the same here. `all_bind`: all fields of the
    object bind the reply, so every unknown text, list or object in it may be a misspelt one. `only_known`:
    every unknown name in it is an error.
    """

    names: Collection[str]
    instead: Mapping[str, str] = MappingProxyType({})
    all_bind: bool = False
    only_known: bool = False


Bindings: TypeAlias = Mapping[type[msgspec.Struct], Binding]
"""by the types of a body and of the objects in it"""


@dataclass(frozen=True)
class BodyKind(Generic[T]):
    """The type of an endpoint's bodies. `inert` has a check for each known field without effect.

    `elsewhere` maps fields of other endpoints to the paths of these.
    """

    struct: type[T]
    inert: Mapping[str, FieldCheck]
    binding: Bindings = field(default_factory=dict)
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def decoder(self) -> msgspec.json.Decoder[T]:
        return msgspec.json.Decoder(self.struct)

    @cached_property
    def required(self) -> list[str]:
        return [each.name for each in msgspec.structs.fields(self.struct) if each.required]
