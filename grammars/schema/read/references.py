"""Resolves `$ref`: JSON pointers, anchors and identifiers within one document."""

from __future__ import annotations

from collections import Counter
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

from ...errors import NotCoveredError, WrongKeywordError
from .json_text import DATA, NAMED, Json

_OLD_DRAFTS = ("draft-03", "draft-04", "draft-05", "draft-06", "draft-07")
_OUTSIDE = "leads out of the schema"


class References:
    """Finds the subschemas to which references lead."""

    def __init__(self, root: Json) -> None:
        self._root = root
        self.ignores_siblings = isinstance(root, dict) and any(
            draft in str(root.get("$schema")) for draft in _OLD_DRAFTS
        )
        self._resources: dict[str, Json] = {"": root}
        self._bases: dict[int, str] = {}
        self._anchors: Counter[tuple[str, str]] = Counter()
        self._is_collected = False

    def base_of(self, schema: Json, base: str) -> str:
        """The base URI of references inside `schema`, whose parent has the base URI `base`."""
        identifier = _identifier(schema)
        if identifier is None or not is_uri(identifier):
            return base
        if schema is self._root:
            return urldefrag(identifier)[0]
        self._collect_once()
        return self._bases.get(id(schema), base)

    def resolve(self, keyword: str, reference: Json, base: str, path: str) -> tuple[Json, str]:
        """The referenced schema and its base URI. Raises NotCoveredError."""
        if not isinstance(reference, str):
            raise WrongKeywordError(keyword, path, "it must be a string")
        found = self._find(reference, base)
        if isinstance(found, str):
            error = NotCoveredError if found == _OUTSIDE else WrongKeywordError
            raise error(keyword, path, f"{reference!r} {found}")
        if keyword != "$ref" and self._is_ambiguous(keyword, found[0]):
            raise NotCoveredError(keyword, path, f"{reference!r} may lead to several subschemas")
        return found

    def _is_ambiguous(self, keyword: str, found: Json) -> bool:
        """Whether the target of a dynamic reference depends on the path along which it is evaluated."""
        if not isinstance(found, dict):
            return False
        if keyword == "$recursiveRef":
            return self._anchors["$recursiveAnchor", ""] > 1
        return self._anchors["$dynamicAnchor", str(found.get("$dynamicAnchor"))] > 1

    def _find(self, reference: str, base: str) -> tuple[Json, str] | str:
        """The referenced schema and its base URI, or the reason why there is none."""
        if not is_uri(reference):
            return "is no URI"
        self._collect_once()
        whole = _join(base, reference)
        target, fragment = urldefrag(whole)
        if fragment and not fragment.startswith("/"):
            named = self._resources.get(whole, self._resources.get(f"#{fragment}"))
            missing = "names nothing in the schema" if target in self._resources else _OUTSIDE
            return missing if named is None else (named, target)
        resource = self._resources.get(target)
        if resource is None:
            return _OUTSIDE
        return self._follow_pointer(resource, unquote(fragment), target)

    def _follow_pointer(self, value: Json, pointer: str, base: str) -> tuple[Json, str] | str:
        for part in pointer.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            try:
                value = value[int(key)] if isinstance(value, list) else value[key]  # type: ignore[index]
            except (KeyError, IndexError, TypeError, ValueError):
                return "points at nothing"
            if isinstance(value, dict) and id(value) in self._bases:
                base = self._bases[id(value)]
        return (value, base) if isinstance(value, dict | bool) else "points at no schema"

    def _collect_once(self) -> None:
        """Finds all resources and anchors, at the first call."""
        pending: list[tuple[Json, str, bool]] = [] if self._is_collected else [(self._root, "", False)]
        self._is_collected = True
        while pending:
            value, base, is_named = pending.pop()
            if isinstance(value, list):
                pending += [(child, base, False) for child in value]
            elif isinstance(value, dict):
                base = base if is_named else self._register(value, base)
                pending += [
                    (child, base, not is_named and key in NAMED)
                    for key, child in value.items()
                    if isinstance(child, dict | list) and (is_named or key not in DATA)
                ]

    def _register(self, schema: dict[str, Json], base: str) -> str:
        identifier = _identifier(schema)
        if identifier is not None and is_uri(identifier):
            whole = _join(base, identifier)
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
                self._anchors[keyword, anchor] += 1
        if schema.get("$recursiveAnchor") is True:
            self._anchors["$recursiveAnchor", ""] += 1
        self._bases[id(schema)] = base
        return base


def is_uri(text: str) -> bool:
    """Whether `text` is a valid URI reference."""
    try:
        urlsplit(text)
    except ValueError:
        return False
    return True


def _join(base: str, reference: str) -> str:
    """Resolves the reference by RFC 3986, even with schemes that `urljoin` does not know, such as `urn`."""
    return urldefrag(base)[0] + reference if reference.startswith("#") else urljoin(base, reference)


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
