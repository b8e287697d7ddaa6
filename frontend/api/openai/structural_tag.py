"""Checks structural tags in the forms of xgrammar and vLLM, and converts them to one form.

`grammars.tags.format` defines the types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from ....runtime.errors import RequestError
from ....runtime.messages import GrammarSpec
from ...core.validation import check_count, invalid_field, missing_field
from ...http.field_names import NOTES

MAX_DEPTH = 32
MAX_FORMATS = 4096  # formats in one structural tag
MAX_TRIGGERS = 256
SHOWN_CHARACTERS = 80
_EXCLUDED = ("excludes", "excluded_str", "excluded_strs")
_COUNTS = ("at_least_one", "stop_after_first")
_NAMES: dict[str, tuple[str, ...]] = {
    "const_string": ("value",),
    "json_schema": ("json_schema", "style"),
    "regex": ("pattern",),
    "any_text": _EXCLUDED,
    "sequence": ("elements",),
    "or": ("elements",),
    "tag": ("begin", "content", "end"),
    "triggered_tags": ("triggers", "tags", *_COUNTS, *_EXCLUDED),
    "tags_with_separator": ("tags", "separator", *_COUNTS),
}
"""The fields of each format besides `type`."""
_PARTS = ("format", "content")
_LISTS = ("structures", "elements", "tags")
Fields = dict[str, Any]


def structural_tag(value: Raw, param: str) -> GrammarSpec:
    """The grammar of a structural tag, an object or a string with its JSON: `{"format": …}`, or in the older
    form `{"structures": [{"begin", "schema", "end"}], "triggers": […]}`.

    Raises `RequestError` naming the field.
    """
    fields = _decoded(value, param)
    _check_size(fields, param)
    _check_names(fields, ("type", "format", "structures", "triggers"), param)
    if fields.get("format") is not None:
        for name in ("structures", "triggers"):
            if fields.get(name):
                raise invalid_field(f"{param}.{name}", f"can't be used with {param}.format: give only one")
        format = _format(fields["format"], f"{param}.format", 0)
    else:
        tags = _list(fields, "structures", param)
        structures = [_structure(each, f"{param}.structures[{place}]") for place, each in enumerate(tags)]
        format = _with_triggers(fields, param, structures)
    return GrammarSpec("structural_tag", msgspec.json.encode(format).decode(), param)


def _decoded(value: Raw, param: str) -> Fields:
    try:
        decoded = msgspec.json.decode(value)
        if isinstance(decoded, str):
            decoded = msgspec.json.decode(decoded)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{param} is not valid JSON: {error}", param=param, code="invalid_value") from None
    return _object(decoded, param)


def _check_size(fields: Fields, param: str) -> None:
    """Refuses too many formats before they are read, because reading takes a few microseconds for each."""
    found: list[object] = [fields]
    for each in found:
        if isinstance(each, dict):
            found += [each[name] for name in _PARTS if isinstance(each.get(name), dict)]
            found += [part for name in _LISTS if isinstance(each.get(name), list) for part in each[name]]
        if len(found) > MAX_FORMATS:
            raise invalid_field(param, f"has more than {MAX_FORMATS} formats and tags: leave some out")


def _format(value: object, where: str, depth: int) -> Fields:
    if depth > MAX_DEPTH:
        raise invalid_field(where, f"is nested more than {MAX_DEPTH} levels deep")
    fields = _object(value, where)
    kind = _text(fields, "type", where)
    if kind not in _READERS:
        known = ", ".join(_READERS)
        raise invalid_field(f"{where}.type", f"is {kind!r}, but must be one of {known}")
    _check_names(fields, ("type", *_NAMES[kind]), where)
    return {"type": kind, **_READERS[kind](fields, where, depth)}


def _check_names(fields: Fields, known: Sequence[str], where: str) -> None:
    """Refuses unknown fields that have a value, because every field of a format constrains the reply."""
    for name, value in fields.items():
        if name not in known and name not in NOTES and value:
            message = f"{where}.{name} is no known field. {where} may have {', '.join(known)}."
            raise RequestError(message, param=f"{where}.{name}", code="unknown_parameter")


def _const_string(fields: Fields, where: str, depth: int) -> Fields:
    return {"value": _text(fields, "value", where)}


def _json_schema(fields: Fields, where: str, depth: int) -> Fields:
    if fields.get("style") not in (None, "json"):
        raise invalid_field(f"{where}.style", f"is {_shown(fields['style'])}, but must be 'json'")
    return {"json_schema": _schema(fields, "json_schema", where)}


def _regex(fields: Fields, where: str, depth: int) -> Fields:
    return {"pattern": _text(fields, "pattern", where)}


def _any_text(fields: Fields, where: str, depth: int) -> Fields:
    for name in _EXCLUDED:
        if fields.get(name):
            raise invalid_field(f"{where}.{name}", "is not supported; remove it")
    return {}


def _elements(fields: Fields, where: str, depth: int) -> Fields:
    elements = _list(fields, "elements", where)
    read = [_format(each, f"{where}.elements[{place}]", depth + 1) for place, each in enumerate(elements)]
    return {"elements": read}


def _tag(fields: Fields, where: str, depth: int) -> Fields:
    begin = _text(fields, "begin", where)
    if fields.get("content") is None:
        raise missing_field(f"{where}.content")
    content = _format(fields["content"], f"{where}.content", depth + 1)
    return {"begin": begin, "content": content, "ends": _ends(fields, where)}


def _ends(fields: Fields, where: str) -> list[Any]:
    end = fields.get("end")
    if end is None:
        raise missing_field(f"{where}.end")
    ends = end if isinstance(end, list) and end else [end]
    if not all(isinstance(each, str) for each in ends):
        raise invalid_field(f"{where}.end", f"is {_shown(end)}, but must be a string or a list of strings")
    return ends


def _triggered_tags(fields: Fields, where: str, depth: int) -> Fields:
    _any_text(fields, where, depth)
    return _with_triggers(fields, where, _tags(fields, where, depth)) | _counts(fields, where)


def _tags_with_separator(fields: Fields, where: str, depth: int) -> Fields:
    separator = _text(fields, "separator", where)
    return {"tags": _tags(fields, where, depth), "separator": separator} | _counts(fields, where)


_READERS: dict[str, Callable[[Fields, str, int], Fields]] = {
    "const_string": _const_string,
    "json_schema": _json_schema,
    "regex": _regex,
    "any_text": _any_text,
    "sequence": _elements,
    "or": _elements,
    "tag": _tag,
    "triggered_tags": _triggered_tags,
    "tags_with_separator": _tags_with_separator,
}


def _tags(fields: Fields, where: str, depth: int) -> list[Fields]:
    """The tags in a format's `tags`. A tag's type may be left out."""
    found = []
    for place, value in enumerate(_list(fields, "tags", where)):
        at = f"{where}.tags[{place}]"
        tag = _object(value, at)
        if tag.get("type", "tag") != "tag":
            raise invalid_field(f"{at}.type", f"is {_shown(tag['type'])}, but must be 'tag'")
        _check_names(tag, ("type", *_NAMES["tag"]), at)
        found.append({"type": "tag", **_tag(tag, at, depth + 1)})
    return found


def _structure(value: object, where: str) -> Fields:
    fields = _object(value, where)
    _check_names(fields, ("begin", "schema", "end"), where)
    schema = {"type": "json_schema", "json_schema": _schema(fields, "schema", where)}
    begin, end = _text(fields, "begin", where), _text(fields, "end", where)
    return {"type": "tag", "begin": begin, "content": schema, "ends": [end]}


def _with_triggers(fields: Fields, where: str, tags: list[Fields]) -> Fields:
    triggers = _list(fields, "triggers", where)
    for place, trigger in enumerate(triggers):
        if not isinstance(trigger, str) or not trigger:
            raise invalid_field(
                f"{where}.triggers[{place}]", f"is {_shown(trigger)}, but must be a string that is not empty"
            )
    check_count(f"{where}.triggers", triggers, MAX_TRIGGERS, "triggers")
    beginnings = tuple(triggers)
    for tag in tags:
        if not tag["begin"].startswith(beginnings):
            raise invalid_field(
                f"{where}.triggers", f"has nothing that the beginning {tag['begin']!r} starts with"
            )
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


def _counts(fields: Fields, where: str) -> Fields:
    found = {name: fields.get(name) or False for name in _COUNTS}
    for name, value in found.items():
        if not isinstance(value, bool):
            raise invalid_field(f"{where}.{name}", f"is {_shown(value)}, but must be true or false")
    return found


def _schema(fields: Fields, name: str, where: str) -> Fields | bool:
    if fields.get(name) is None:
        raise missing_field(f"{where}.{name}")
    schema = fields[name]
    if not isinstance(schema, dict | bool):
        raise invalid_field(f"{where}.{name}", "must be a JSON schema: an object")
    return schema


def _text(fields: Fields, name: str, where: str) -> str:
    if fields.get(name) is None:
        raise missing_field(f"{where}.{name}")
    if not isinstance(fields[name], str):
        raise invalid_field(f"{where}.{name}", f"is {_shown(fields[name])}, but must be a string")
    return str(fields[name])


def _list(fields: Fields, name: str, where: str) -> list[Any]:
    if fields.get(name) is None:
        raise missing_field(f"{where}.{name}")
    value = fields[name]
    if not isinstance(value, list) or not value:
        raise invalid_field(f"{where}.{name}", "must be a list with at least one element")
    return value


def _object(value: object, where: str) -> Fields:
    if not isinstance(value, dict):
        raise invalid_field(where, "must be an object")
    return value


def _shown(value: object) -> str:
    """The value as the client wrote it."""
    return repr(value) if isinstance(value, str) else msgspec.json.encode(value).decode()[:SHOWN_CHARACTERS]
