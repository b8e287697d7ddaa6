"""Python functions as tools of a chat."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec


def tool_definition(tool: Callable[..., object] | Mapping[str, Any]) -> dict[str, Any]:
    """The definition that OpenAI's API has for a function; its schema comes from the type annotations.

    Raises TypeError for a parameter without an annotation, or of a type without a schema.
    """
    if isinstance(tool, Mapping):
        return dict(tool)
    hints = typing.get_type_hints(tool, include_extras=True)
    fields: list[Any] = []
    for name, parameter in inspect.signature(tool).parameters.items():
        if name not in hints or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TypeError(
                f"the tool {tool.__name__!r} has the parameter {name!r}, whose type is not known: annotate "
                f"it, as in `{name}: str`."
            )
        fields.append((name, hints[name], *_default(parameter)))
    arguments = msgspec.defstruct(tool.__name__, fields, kw_only=True, forbid_unknown_fields=True)
    (_,), definitions = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    schema = definitions.pop(tool.__name__)
    schema.pop("title", None)
    if definitions:
        schema["$defs"] = definitions
    function = {"name": tool.__name__, "description": inspect.getdoc(tool) or "", "parameters": schema}
    return {"type": "function", "function": function}


def _default(parameter: inspect.Parameter) -> tuple[Any, ...]:
    """A parameter's default in the form for a Struct's field; empty without one. Each use copies a list, as a
    Struct demands."""
    default = parameter.default
    if default is parameter.empty:
        return ()
    if isinstance(default, list | dict | set):
        return (msgspec.field(default_factory=lambda: default.copy()),)
    return (default,)
