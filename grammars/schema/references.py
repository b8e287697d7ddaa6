"""Where `$ref` leads: JSON pointers, anchors and identifiers within one document."""

from __future__ import annotations

from urllib.parse import unquote, urldefrag, urljoin

from ..errors import NotCoveredError
from ..json_schema import Json

_OLD_DRAFTS = ("draft-03", "draft-04", "draft-05", "draft-06", "draft-07")


class References:
    """Finds the subschemas of a document by reference."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self.ignores_siblings = isinstance(root, dict) and any(
            draft in str(root.get("$schema")) for draft in _OLD_DRAFTS
        )
        self.base = _identifier(root) or ""
        self._resources: dict[str, Json] = {"": root}
        self._bases: dict[int, str] = {}
        self._collect(root, "")

    def base_of(self, schema: Json, base: str) -> str:
        """The base of references inside of `schema`, which stands where `base` holds."""
        identifier = _identifier(schema)
        return base if identifier is None else urldefrag(urljoin(base, identifier))[0]

    def resolve(self, reference: Json, base: str, path: str) -> tuple[Json, str]:
        """The schema referred to and the base that holds there."""
        if not isinstance(reference, str):
            raise NotCoveredError("$ref", path, f"{reference!r} is not a string")
        target, fragment = urldefrag(urljoin(base, reference))
        whole = urljoin(base, reference)
        if fragment and not fragment.startswith("/"):
            found = self._resources.get(whole, self._resources.get(f"#{fragment}"))
            if found is None:
                raise NotCoveredError("$ref", path, f"{reference!r} names nothing in the schema")
            return found, target
        resource = self._resources.get(target)
        if resource is None:
            raise NotCoveredError("$ref", path, f"{reference!r} leads out of the schema")
        return self._pointed(resource, unquote(fragment), target, reference, path)

    def _pointed(self, value: Json, pointer: str, base: str, reference: str, path: str) -> tuple[Json, str]:
        for part in pointer.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            try:
                value = value[int(key)] if isinstance(value, list) else value[key]  # type: ignore[index]
            except (KeyError, IndexError, TypeError, ValueError):
                raise NotCoveredError("$ref", path, f"{reference!r} points at nothing") from None
            if isinstance(value, dict) and id(value) in self._bases:
                base = self._bases[id(value)]
        if not isinstance(value, dict | bool):
            raise NotCoveredError("$ref", path, f"{reference!r} points at no schema")
        return value, base

    def _collect(self, root: Json, base: str) -> None:
        pending: list[tuple[Json, str]] = [(root, base)]
        while pending:
            value, base = pending.pop()
            if isinstance(value, list):
                pending += [(child, base) for child in value]
            elif isinstance(value, dict):
                base = self._registered(value, base)
                pending += [(child, base) for child in value.values() if isinstance(child, dict | list)]

    def _registered(self, schema: dict[str, Json], base: str) -> str:
        identifier = _identifier(schema)
        if identifier is not None:
            whole = urljoin(base, identifier)
            self._resources.setdefault(whole, schema)
            if identifier.startswith("#"):
                self._resources.setdefault(identifier, schema)
            else:
                base = urldefrag(whole)[0]
                self._resources.setdefault(base, schema)
        for keyword in ("$anchor", "$dynamicAnchor"):
            anchor = schema.get(keyword)
            if isinstance(anchor, str):
                self._resources.setdefault(f"{base}#{anchor}", schema)
                self._resources.setdefault(f"#{anchor}", schema)
        self._bases[id(schema)] = base
        return base


def _identifier(schema: Json) -> str | None:
    if not isinstance(schema, dict):
        return None
    for keyword in ("$id", "id"):
        identifier = schema.get(keyword)
        if isinstance(identifier, str) and not (
            keyword == "id" and "$schema" not in schema and "#" not in identifier and "/" not in identifier
        ):
            return identifier
    return None
