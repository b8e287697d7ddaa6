"""Finds equal subschemas, so that each is compiled once."""

from __future__ import annotations

from typing import Literal, TypeAlias

from .json_text import DATA, NAMED, Json

_ANNOTATIONS = {"title", "description", "default", "examples", "example", "$comment", "readOnly", "writeOnly"}
_Kind: TypeAlias = Literal["schema", "map", "data"]


class Identities:
    """Numbers the values of one document, which must live as long as this object."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, _Kind], int] = {}
        self._structures: dict[object, int] = {}

    def number(self, value: Json, kind: _Kind = "schema") -> int:
        """A number that is equal for equal subschemas. Annotations don't count. JSON numbers are equal if
        they are written alike.

        The keys of a "map" are names, not keywords; "data" is compared as it is.
        """
        if not isinstance(value, dict | list):
            return self._structures.setdefault((type(value), str(value)), len(self._structures))
        known = self._known.get((id(value), kind))
        if known is None:
            structure = self._structure(value, kind)
            known = self._structures.setdefault(structure, len(self._structures))
            self._known[id(value), kind] = known
        return known

    def _structure(self, value: dict[str, Json] | list[Json], kind: _Kind) -> object:
        if isinstance(value, list):
            return ("list", *(self.number(item, kind) for item in value))
        pairs = [
            (name, self.number(child, _kind_of(name, kind)))
            for name, child in value.items()
            if kind != "schema" or name not in _ANNOTATIONS
        ]
        return ("dict", *pairs)


def _kind_of(name: str, parent: _Kind) -> _Kind:
    """The kind of value under this key of a parent."""
    if parent != "schema":
        return "data" if parent == "data" else "schema"
    return "data" if name in DATA else "map" if name in NAMED else "schema"
