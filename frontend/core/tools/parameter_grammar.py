"""Structural tags for arguments that are not one JSON object, and the types of parameters."""

from __future__ import annotations

import keyword
from collections.abc import Collection, Mapping
from typing import Any

from .call_arguments import ParameterTypes
from .call_format import PYTHON_WORDS, Parameters

Format = dict[str, Any]
Schema = Mapping[str, Any]
KnownTypes = dict[int, frozenset[str]]
"""the types of subschemas by their `id`, which is theirs as long as the whole schema lives"""

SAYS_NOTHING = {"title", "description", "examples", "default", "$schema", "$id", "$comment", "strict"}
MAX_REFERENCES = 16  # references in a row
MAX_DEPTH = 20  # levels of a value whose keys have no quotes
MAX_SUBSCHEMAS = 4096  # subschemas of one tool, each counted as often as it is used
_OF_AN_OBJECT = {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
_ALL_TYPES = frozenset(("string", "number", "integer", "boolean", "null", "array", "object"))
_UNIONS = ("anyOf", "oneOf")
_KINDS = {"properties": dict, "required": list, **dict.fromkeys(_UNIONS, list)}
_NESTED = {"items", "anyOf", "oneOf", "enum", "const", *_OF_AN_OBJECT}


def list_types(
    schema: Any, root: Any, known: KnownTypes | None = None, references: int = 0
) -> frozenset[str]:
    """The JSON types that a schema allows, as far as its own keywords tell. `root`: the whole schema.
    `known`: the types of its subschemas found so far."""
    if not isinstance(schema, dict) or references > MAX_REFERENCES:
        return _ALL_TYPES
    known = {} if known is None else known
    if id(schema) not in known:
        known[id(schema)] = _ALL_TYPES  # for a schema that refers to itself
        known[id(schema)] = _list_own_types(schema, root, known, references + 1)
    return known[id(schema)]


def _list_own_types(schema: Schema, root: Any, known: KnownTypes, references: int) -> frozenset[str]:
    found = _ALL_TYPES
    if "type" in schema:
        named = schema["type"]
        given = frozenset(
            each for each in (named if isinstance(named, list) else [named]) if isinstance(each, str)
        )
        found = given | ({"integer"} if "number" in given else frozenset())
    values = schema.get("enum") if isinstance(schema.get("enum"), list) else None
    values = [schema["const"]] if "const" in schema else values
    if values is not None:
        found &= frozenset(name for value in values for name in _types_of(value))
    for union in _UNIONS:
        if isinstance(schema.get(union), list):
            found &= frozenset().union(*(list_types(each, root, known, references) for each in schema[union]))
    for each in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
        found &= list_types(each, root, known, references)
    if "$ref" in schema:
        found &= list_types(_follow(schema["$ref"], root), root, known, references)
    return found


def parameter_types(parameters: Any) -> ParameterTypes:
    """The types of each declared parameter."""
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    declared = properties if isinstance(properties, dict) else {}
    known: KnownTypes = {}
    return {name: list_types(schema, parameters, known) for name, schema in declared.items()}


def _types_of(value: Any) -> Collection[str]:
    match value:
        case bool():
            return ("boolean",)
        case int() | float():
            return ("number", "integer")
        case str():
            return ("string",)
        case list():
            return ("array",)
    return ("null",) if value is None else ("object",)


def _follow(reference: Any, root: Any) -> Any:
    """The subschema that a reference within the schema names; None for any other reference."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = root
    for step in filter(None, reference[1:].split("/")):
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


def find_problem(syntax: Parameters, parameters: Schema) -> str | None:
    """The reason why arguments can't be enforced where each parameter is written for itself, if any."""
    unknown = parameters.keys() - _OF_AN_OBJECT - SAYS_NOTHING
    if unknown or parameters.get("type") != "object":
        return f"the keyword {min(unknown, default='type')!r} of its parameters"
    properties = parameters.get("properties", {})
    if not isinstance(properties, dict):
        return "its parameters' 'properties', which are no object"
    required = parameters.get("required", [])
    if not (isinstance(required, list) and all(isinstance(each, str) for each in required)):
        return "its parameters' 'required', which is no list of names"
    missing = [name for name in required if name not in properties]
    wrong = [name for name in properties if not _is_name(syntax, name)]
    if missing or wrong:
        return f"the parameter {[*missing, *wrong][0]!r}"
    inner = [properties, parameters.get("$defs"), parameters.get("definitions")]
    if any(_refers_outside(each) for each in inner):
        return "a reference"
    if not syntax.quote:
        return None
    return _find_nested_problem(list(properties.values()), parameters)


def _is_name(syntax: Parameters, name: str) -> bool:
    if syntax.quote is None:
        return name.isidentifier() and not keyword.iskeyword(name)
    after = syntax.name[1].strip()
    return bool(name) and name == name.strip() and after[:1] not in name and not set("{}[]:,<>") & set(name)


def _refers_outside(value: Any) -> bool:
    """Whether a reference leads outside of `$defs` and `definitions`, which each property's schema gets."""
    if isinstance(value, list):
        return any(map(_refers_outside, value))
    if not isinstance(value, dict):
        return False
    reference = value.get("$ref", "#/$defs/")
    inside = isinstance(reference, str) and reference.startswith(("#/$defs/", "#/definitions/"))
    return not inside or any(map(_refers_outside, value.values()))


def _find_nested_problem(schemas: list[Any], root: Schema) -> str | None:
    """The reason why values can't be enforced whose keys have no quotes, if any."""
    known: KnownTypes = {}
    waiting, count = [(each, 0) for each in reversed(schemas)], len(schemas)
    while waiting:
        schema, depth = waiting.pop()
        schema = _resolve(schema, root)
        if schema is None or depth > MAX_DEPTH or count > MAX_SUBSCHEMAS:
            return "a schema that is too large, nested too deep, or refers to itself"
        types = list_types(schema, root, known)
        if problem := _find_own_problem(schema, types):
            return problem
        inner = _list_choices(schema)
        if types & {"array", "object"}:
            inner += [
                *schema.get("properties", {}).values(),
                *([schema["items"]] if "items" in schema else []),
            ]
        waiting += [(each, depth + 1) for each in reversed(inner)]
        count += len(inner)
    return None


def _find_own_problem(schema: Any, types: frozenset[str]) -> str | None:
    if not isinstance(schema, dict):
        return "a schema that is true, false or no object"
    wrong = [name for name, kind in _KINDS.items() if not isinstance(schema.get(name, kind()), kind)]
    if wrong:
        return f"the keyword {wrong[0]!r}, whose value has the wrong type"
    if not types & {"array", "object"}:
        return None
    unknown = schema.keys() - _NESTED - SAYS_NOTHING
    if unknown:
        return f"the keyword {min(unknown)!r}"
    unions = _list_choices(schema)
    if not unions and "enum" not in schema and "const" not in schema and len(types) > 2:
        return "a value of any type"
    if "object" in types and not unions and not schema.get("properties"):
        return "an object without properties"
    if "array" in types and not unions and "items" not in schema:
        return "an array without items"
    return None


def _list_choices(schema: Schema) -> list[Any]:
    return [each for union in _UNIONS for each in schema.get(union, ())]


def _resolve(schema: Any, root: Any) -> Any:
    """The schema to which a schema that is only a reference leads."""
    for _ in range(MAX_REFERENCES):
        if not isinstance(schema, dict) or "$ref" not in schema or schema.keys() - SAYS_NOTHING - {"$ref"}:
            return schema
        schema = _follow(schema["$ref"], root)
    return None


class ParameterValues:
    """Builds the formats of one function's parameters. A value that can't be enforced is refused if
    `is_strict`, else it is any value."""

    def __init__(
        self, syntax: Parameters, separators: tuple[str, str], function: str, *, is_strict: bool
    ) -> None:
        self._syntax = syntax
        otherwise = "refuse" if is_strict else "value"
        self._fields = {"separators": separators, "function": function, "otherwise": otherwise}
        self._types: KnownTypes = {}

    def build_members(self, schema: Schema, root: Schema | None = None, path: str = "#") -> Format:
        """The parameters of a function, or the members of an object whose keys have no quotes."""
        syntax, properties = self._syntax, schema.get("properties", {})
        root = schema if root is None else root
        names = sorted(properties, key=str.lower) if syntax.is_sorted else list(properties)
        members = [
            {
                "begin": f"{syntax.name[0]}{name}{self._after_name(properties[name], root)}",
                "content": self._build(properties[name], root, f"{path}/properties/{name}"),
                "end": syntax.end,
                "required": name in schema.get("required", []),
            }
            for name in names
        ]
        return {"type": "members", "members": members, "separator": syntax.between}

    def _after_name(self, schema: Any, root: Schema) -> str:
        types, (_, after) = list_types(schema, root, self._types), self._syntax.name
        if not self._syntax.typed or types == {"string"}:
            return after
        return self._syntax.typed if "string" not in types else ""

    def _build(self, schema: Any, root: Schema, path: str) -> Format:
        syntax, types = self._syntax, list_types(schema, root, self._types)
        if syntax.quote is None:
            return self._leaf("json_schema", schema, root, path)
        if syntax.quote:
            return self._build_nested(schema, root, path)
        if syntax.typed and "string" in types and types != {"string"}:
            return self._build_typed(schema, root, path)
        if "string" in types:
            return self._leaf("text", _resolve(schema, root), root, path)
        if (
            syntax.is_python
            and types
            and types <= {"boolean", "null"}
            and set(schema) <= {"type", *SAYS_NOTHING}
        ):
            words = ["true", "false"] * ("boolean" in types) + ["null"] * ("null" in types)
            return _one_of([_constant(PYTHON_WORDS[word]) for word in words])
        return self._leaf("json_schema", schema, root, path)

    def _build_typed(self, schema: Any, root: Schema, path: str) -> Format:
        """A value with the mark of its type before it: a string, or any other value."""
        tags = (
            (self._syntax.name[1], "text", _resolve(schema, root)),
            (self._syntax.typed, "json_schema", {"allOf": [schema, {"not": {"type": "string"}}]}),
        )
        return _one_of(
            [
                {"type": "sequence", "elements": [_constant(mark), self._leaf(kind, each, root, path)]}
                for mark, kind, each in tags
            ]
        )

    def _build_nested(self, schema: Any, root: Schema, path: str) -> Format:
        """A value in which strings have their own quotes and keys have none."""
        schema, quote = _resolve(schema, root), self._syntax.quote or ""
        types, choices = list_types(schema, root, self._types), []
        for union in _UNIONS:
            for number, each in enumerate(schema.get(union, ()) if isinstance(schema, dict) else ()):
                choices.append(self._build_nested(each, root, f"{path}/{union}/{number}"))
        if choices:
            return _one_of(choices)
        if "string" in types:
            text = self._leaf("text", schema, root, path)
            choices.append({"type": "tag", "begin": quote, "content": text, "ends": [quote]})
        if "array" in types:
            item = self._build_nested(schema["items"], root, f"{path}/items")
            tag = {"type": "tag", "begin": "", "content": item, "ends": [""]}
            items = {"type": "tags_with_separator", "tags": [tag], "separator": ","}
            choices.append({"type": "tag", "begin": "[", "content": items, "ends": ["]"]})
        if "object" in types:
            members = self.build_members(schema, root, path)
            choices.append({"type": "tag", "begin": "{", "content": members, "ends": ["}"]})
        scalars = types - {"string", "array", "object"}
        if scalars or not choices:
            named = schema if scalars == types else {"type": sorted(scalars)}
            choices.append(self._leaf("json_schema", named, root, path))
        return _one_of(choices)

    def _leaf(self, kind: str, schema: Any, root: Schema, path: str) -> Format:
        shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
        whole = {**schema, **shared} if isinstance(schema, dict) else schema
        return {"type": kind, "json_schema": whole, "root": path, **self._fields}


def _constant(text: str) -> Format:
    return {"type": "const_string", "value": text}


def _one_of(formats: list[Format]) -> Format:
    return formats[0] if len(formats) == 1 else {"type": "or", "elements": formats}
