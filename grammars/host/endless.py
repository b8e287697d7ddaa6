"""Finds schemas that may require a value inside itself, endlessly; llguidance would start such a value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..schema.read.json_text import Json, objects

_SAY_NOTHING_MORE = {"title", "description", "default", "examples"}
_MEMBERS = {"properties", "patternProperties", "additionalProperties"}
_NO_PARTS = _MEMBERS | {"$defs", "definitions", "enum", "const", "default", "examples"}
_OF_PLAIN = _SAY_NOTHING_MORE | {"type", "enum", "const", "pattern", "format"}
_OF_ITEMS = {"items", "additionalItems", "prefixItems"}


def may_be_endless(schema: Json) -> bool:
    """False is certain, except for contradictory parts; True is a safe guess."""
    return _Demands(schema).run_in_circles()


class _Demands:
    """The required parts of a value. A name that any part of the schema requires counts as required in
    all."""

    def __init__(self, schema: Json) -> None:
        self._schema = schema
        found = [fields for _, fields in objects(schema)]
        self._required = _names(fields.get("required") for fields in found)
        self._may_be_empty = not any(fields.get("minProperties") for fields in found)
        self._optional = _NO_PARTS
        if not any(fields.get("minItems") for fields in found):
            self._optional = _NO_PARTS | _OF_ITEMS
        self._above: set[int] = set()
        self._ended: set[int] = set()

    def run_in_circles(self) -> bool:
        try:
            return self._is_endless(self._schema)
        except (LookupError, ValueError, TypeError, RecursionError):  # a reference that is not supported here
            return True

    def _is_endless(self, part: Json) -> bool:
        if not isinstance(part, dict | list) or id(part) in self._ended:
            return False
        if id(part) in self._above:
            return True
        self._above.add(id(part))
        endless = any(map(self._is_endless, self._demanded(part)))
        self._above.remove(id(part))
        self._ended.add(id(part))
        return endless

    def _demanded(self, part: dict[str, Json] | list[Json]) -> Iterator[Json]:
        if isinstance(part, list):
            yield from part
            return
        for key, value in part.items():
            if key.startswith("$") and key.endswith("ef"):
                yield self._target(key, value)
            elif key in ("anyOf", "oneOf") and not part.keys() - _SAY_NOTHING_MORE - {key}:
                yield from self._alternatives(value)
            elif key not in self._optional:
                yield value
        yield from self._members(part)

    def _members(self, part: dict[str, Json]) -> Iterator[Json]:
        """The member schemas that may be required: a pattern may match any name, `additionalProperties`
        any other."""
        declared = _named(part.get("properties"))
        yield from (value for name, value in declared.items() if name in self._required)
        if self._required or not self._may_be_empty:
            yield from _named(part.get("patternProperties")).values()
        if self._required - declared.keys() or not self._may_be_empty:
            yield part.get("additionalProperties")

    def _alternatives(self, parts: Json) -> list[Json]:
        """The alternatives that may be required; none if one of them is plain, as null is."""
        assert isinstance(parts, list)
        return [] if any(isinstance(part, dict) and _is_plain(part) for part in parts) else parts

    def _target(self, key: str, reference: Json) -> Json:
        """The referenced part. Raises an error for unusual references."""
        if key != "$ref" or not isinstance(reference, str) or not reference.startswith("#"):
            raise ValueError("another document")
        part = self._schema
        for step in reference[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            part = part[int(name)] if isinstance(part, list) else part[name]  # type: ignore[index]
        if reference != "#" and not reference.startswith("#/"):
            raise ValueError("an anchor")
        return part


def _is_plain(part: dict[str, Json]) -> bool:
    return not part.keys() - _OF_PLAIN


def _named(parts: Json) -> dict[str, Json]:
    return parts if isinstance(parts, dict) else {}


def _names(lists: Iterable[Json]) -> set[str]:
    """All names in these lists; a property that is called `required` gives an object instead of a list."""
    found = (name for names in lists if isinstance(names, list | dict) for name in names)
    return {name for name in found if isinstance(name, str)}
