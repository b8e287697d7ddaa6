"""Checks the names in a request's body. An unknown name that may be a misspelt constraint is an error; any
other is ignored with a warning."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import NamedTuple, get_args, get_type_hints

import msgspec
from msgspec import Raw, Struct

from ...runtime.errors import RequestError
from ..core.text.close_names import close_name
from ..core.validation import check_count
from .body_kind import Binding, Bindings, BodyKind, T

MAX_UNKNOWN = 256  # names in one request: the search for the intended field takes up to 0.1 ms for each
MAX_SHOWN = 100  # characters of a name that an error shows
MAX_WARNINGS = 10  # warnings that one request may cause
MAX_WARNED = 100  # fields that the log warns of in the lifetime of the process
NOTES = frozenset(("name", "title", "description", "id", "comment"))  # fields that constrain nothing
NOTHING = (b"null", b"false", b'""', b"[]", b"{}")  # values by which a client asks for nothing
READ_BYTES = 8  # bytes of a value that are compared; all values in NOTHING are shorter
MAX_ELEMENTS = 1024  # elements of a list whose field names are checked; each takes 10 µs
_NULL = Raw(b"null")
_BINDS_NOTHING = Binding(())
_fields = msgspec.json.Decoder(dict[str, Raw])
_list = msgspec.json.Decoder(list[Raw])
log = logging.getLogger(__name__)


class FieldNames:
    """Checks names, and remembers which unknown ones the log has warned of."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def check(self, fields: dict[str, Raw], kind: BodyKind[T]) -> None:
        """Raises `RequestError` for a name that must not be ignored, or for too many unknown names."""
        inert = (fields.keys() & kind.inert.names) - set(kind.struct.__struct_fields__)
        for name in inert:
            advice = kind.inert.check(name, bytes(fields[name]))
            if advice is not None and self._may_warn(name):
                log.warning("the request field %r has no effect. %s", name, advice)
        body = _Object("", {name: fields[name] for name in fields if name not in inert}, kind.struct)
        _check_misplaced(fields, kind)
        for place, name in islice(_ignored_names(body, kind.binding), MAX_WARNINGS):
            instead = kind.binding.get(place.kind, _BINDS_NOTHING).instead
            self._warn(place, name, instead.get(name) or close_name(name, place.kind.__struct_fields__))

    def _warn(self, place: _Object, name: str, near: str | None) -> None:
        shown = place.path + name[:MAX_SHOWN]
        if self._may_warn(shown):
            meant = "" if near is None else f": did you mean {place.path}{near}?"
            log.warning("unknown request field %r%s", shown, meant)

    def _may_warn(self, field: str) -> bool:
        """True once for each field, and for at most `MAX_WARNED` fields."""
        if field in self._warned or len(self._warned) >= MAX_WARNED:
            return False
        self._warned.add(field)
        return True


class _Object(NamedTuple):
    """A JSON object in a request's body. `path`, such as `tools[0].`, precedes the names of its fields."""

    path: str
    fields: Mapping[str, Raw]
    kind: type[Struct]

    def unknown(self) -> list[str]:
        return sorted(self.fields.keys() - set(self.kind.__struct_fields__))


def _ignored_names(body: _Object, bindings: Bindings) -> Iterable[tuple[_Object, str]]:
    """The unknown names of a body and of the objects in it, once for each type of object.

    Raises `RequestError` for a name that may be a misspelt constraint, or for too many unknown names.
    """
    first: dict[tuple[type[Struct], str], _Object] = {}
    meant: dict[tuple[type[Struct], str], str | None] = {}
    for place in _with_inner(body, bindings):
        binding = bindings.get(place.kind, _BINDS_NOTHING)
        for name in place.unknown():
            key = place.kind, name
            if key not in first:
                first[key] = place
                meant[key] = binding.instead.get(name) or close_name(name, binding.names)
            if len(first) > MAX_UNKNOWN:
                problem = f"The request has more than {MAX_UNKNOWN} unknown fields: leave them out."
                raise RequestError(problem, code="unknown_parameter")
            _check_unknown(place, name, meant[key], binding)
    return [(place, name) for (_, name), place in first.items()]


def _check_unknown(place: _Object, name: str, meant: str | None, binding: Binding) -> None:
    """Raises `RequestError` for a name that may be a misspelt constraint."""
    value = place.fields[name]
    if bytes(memoryview(value)[:READ_BYTES]) in NOTHING:
        return
    param = place.path + name
    if meant is not None and not (name in binding.instead and _has(place.fields, meant)):
        advice = f"Did you mean {place.path}{meant}?"
    elif binding.only_known or (
        binding.all_bind and name not in NOTES and _first(value) in (b'"', b"{", b"[")
    ):
        advice = f"{place.path[:-1]} may have {', '.join(place.kind.__struct_fields__)}."
    else:
        return
    raise RequestError(f"{param} is no known field. {advice}", param=param, code="unknown_parameter")


def _has(fields: Mapping[str, Raw], path: str) -> bool:
    """Whether there is a field at a path such as `function.parameters`."""
    name, _, inner = path.partition(".")
    value = fields.get(name, _NULL)
    return name in fields and (not inner or (_first(value) == b"{" and _has(_fields.decode(value), inner)))


def _check_misplaced(fields: Mapping[str, Raw], kind: BodyKind[T]) -> None:
    """Raises `RequestError` for a request that has another endpoint's field, but lacks a required one."""
    missing = [name for name in kind.required if name not in fields]
    for name, path in kind.elsewhere.items() if missing else ():
        if name in fields:
            raise RequestError(
                f"The required field {missing[0]} is missing, and {name} is a field of {path}: "
                f"send the request there, or {missing[0]} here.",
                param=missing[0],
                code="missing_field",
            )


def _with_inner(place: _Object, bindings: Bindings) -> Iterator[_Object]:
    """Yields the object and those of known types in it; objects in lists only if they have binding fields."""
    yield place
    for name, kind in _inner_kinds(place.kind).items():
        value = place.fields.get(name, _NULL)
        if _first(value) == b"{":
            yield from _with_inner(_Object(f"{place.path}{name}.", _fields.decode(value), kind), bindings)
        elif _first(value) == b"[" and kind in bindings:
            elements = _list.decode(value)
            check_count(f"{place.path}{name}", elements, MAX_ELEMENTS, "elements")
            for index, each in enumerate(elements):
                if _first(each) == b"{":
                    inner = _Object(f"{place.path}{name}[{index}].", _fields.decode(each), kind)
                    yield from _with_inner(inner, bindings)


def _first(value: Raw) -> bytes:
    """The first character of a field's JSON."""
    return bytes(memoryview(value)[:1])


@cache
def _inner_kinds(kind: type[Struct]) -> dict[str, type[Struct]]:
    """The fields that may be objects of a known type, or lists of them."""
    return {
        name: inner
        for name, hint in get_type_hints(kind).items()
        for inner in _parts(hint)
        if isinstance(inner, type) and issubclass(inner, Struct)
    }


def _parts(hint: object) -> Iterator[object]:
    """Yields the types in a type hint: the hint itself, a union's members, and the elements of lists."""
    yield hint
    for part in get_args(hint):
        yield from _parts(part)
