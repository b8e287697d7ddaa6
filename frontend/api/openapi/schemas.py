"""JSON schemas of msgspec types, with names and required members as clients need them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, get_args

import msgspec
from msgspec import Struct, UnsetType

Json: TypeAlias = dict[str, Any]
_REF = "#/components/schemas/"


class Schemas:
    """The schemas of `bodies` and `replies`, and the `components` that they refer to."""

    def __init__(self, bodies: Sequence[Any], replies: Sequence[Any]) -> None:
        types = list(dict.fromkeys([*bodies, *replies]))
        found, components = msgspec.json.schema_components(
            types, schema_hook=_any_value, ref_template=_REF + "{name}"
        )
        sent = set(structs_in(replies))
        for kind in sent - set(structs_in(bodies)):
            schema = components.get(_full_name(kind)) or components[kind.__name__]
            schema["required"] = _members_sent(kind)
        names = _names({_full_name(kind) for kind in structs_in(types)} & components.keys())
        refs = {_REF + full: _REF + name for full, name in names.items()}
        self.components: Json = {
            names.get(name, name): _component(names.get(name, name), schema, refs)
            for name, schema in components.items()
        }
        self._schemas = {kind: _tidy(schema, refs) for kind, schema in zip(types, found, strict=True)}

    def of(self, kind: Any) -> Json:
        schema: Json = self._schemas[kind]
        return schema


def structs_in(types: Iterable[Any]) -> list[type[Struct]]:
    """The structs among the types and inside of them, each once."""
    found: dict[type[Struct], None] = {}
    left = list(types)
    while left:
        kind = left.pop()
        if isinstance(kind, type) and issubclass(kind, Struct):
            if kind not in found:
                found[kind] = None
                left.extend(field.type for field in msgspec.structs.fields(kind))
        else:
            left.extend(get_args(kind))
    return list(found)


def _any_value(kind: type) -> Json:
    """The schema of `object`, which is not empty because msgspec ignores an empty schema."""
    return {"description": "any JSON value"}


def _members_sent(kind: type[Struct]) -> list[str]:
    """The names of the members that a struct's JSON always has."""
    config = kind.__struct_config__
    tag = [str(config.tag_field)] if config.tag is not None else []
    return tag + [
        field.encode_name
        for field in msgspec.structs.fields(kind)
        if UnsetType not in get_args(field.type) and (field.required or not config.omit_defaults)
    ]


def _full_name(kind: type[Struct]) -> str:
    """The name of a component whose class shares its name with another one's."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _names(full_names: Iterable[str]) -> Mapping[str, str]:
    """Short names for full ones: the package and the class, such as `AnthropicUsage`."""
    short = {}
    for full in full_names:
        *_, package, _module, name = full.split(".")
        short[full] = package.capitalize() + name
    counts = Counter(short.values())
    return {full: name if counts[name] == 1 else "_".join(full.split(".")) for full, name in short.items()}


def _component(name: str, schema: Any, refs: Mapping[str, str]) -> Json:
    """A component whose title is its name: generated clients name their classes by the title."""
    component: Json = {**_tidy(schema, refs), "title": name}
    return component


def _tidy(schema: Any, refs: Mapping[str, str]) -> Any:
    """The schema with the final names of components, and each description on one line."""
    if isinstance(schema, dict):
        return {name: _tidied(name, value, refs) for name, value in schema.items()}
    if isinstance(schema, list):
        return [_tidy(each, refs) for each in schema]
    return refs.get(schema, schema) if isinstance(schema, str) else schema


def _tidied(name: str, value: Any, refs: Mapping[str, str]) -> Any:
    is_text = name == "description" and isinstance(value, str)
    return " ".join(value.split()) if is_text else _tidy(value, refs)
