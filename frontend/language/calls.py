"""The functions that make expressions: `gen`, `select`, `system`, `user`, `assistant`, `tool`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import msgspec

from ...runtime.errors import RequestError
from ..core.fields import SamplingFields
from ..core.text.close_names import did_you_mean
from ..core.type_errors import type_error
from ..core.validation import check_fields
from ..engine.completion import ToolCall
from ..engine.sampling import ReplyOptions
from ..engine.typed import schema_and_reader
from .expressions import Expression, Gen, Select, join
from .tools import tool_definition
from .transcript import Role, Transcript

CONSTRAINTS = ("regex", "json_schema", "choices", "grammar")


class GenOptions(ReplyOptions, total=False):
    """The options of `gen` that its signature does not name."""

    tool_choice: str | Mapping[str, object]
    chat_template_kwargs: Mapping[str, object]


MORE = tuple(GenOptions.__annotations__)


def gen(
    name: str | None = None,
    *,
    max_tokens: int | None = None,
    stop: str | Sequence[str] | None = None,
    temperature: float | None = None,
    seed: int | None = None,
    regex: str | None = None,
    json_schema: object = None,
    choices: Sequence[str] | None = None,
    grammar: str | None = None,
    tools: Sequence[Callable[..., object] | Mapping[str, Any]] | None = None,
    **more: Unpack[GenOptions],
) -> Expression:
    """A reply of the model; `state[name]` is its value: text, or with `json_schema` a value of that type.

    Omitted options have the HTTP API's defaults. At most one of `regex`, `json_schema` (a schema, True for
    any object, or a type), `choices` and `grammar` (Lark or GBNF) constrains it. `tools` are functions with
    type annotations and a docstring, or definitions as in OpenAI's API: see `State.tool_calls`. `more` are
    the other sampling fields of the HTTP API, such as `top_p`. Raises TypeError for an unknown field or a
    wrong type, and ValueError for a value out of its range. Regexes, schemas and grammars are checked when
    the call runs.
    """
    constraints = {"regex": regex, "json_schema": json_schema, "choices": choices, "grammar": grammar}
    given = [each for each in CONSTRAINTS if constraints[each] is not None]
    if len(given) > 1:
        raise TypeError(f"gen({name!r}): give {given[0]} or {given[1]}, not both.")
    for field in more:
        if field not in MORE:
            known = [*MORE, *CONSTRAINTS, "max_tokens", "stop", "temperature", "seed", "tools"]
            raise TypeError(f"gen({name!r}): unknown option {field!r}.{did_you_mean(field, known)}")
    sampling = {"max_tokens": max_tokens, "stop": stop, "temperature": temperature, "seed": seed, **more}
    _check_sampling(f"gen({name!r})", sampling)
    if choices is not None:
        _check_choices(f"gen({name!r})", choices)
    sampling |= {"regex": regex, "grammar": grammar, "choices": None if choices is None else list(choices)}
    read: Callable[[str], object] = str
    if json_schema is not None:
        sampling["json_schema"], read = schema_and_reader(json_schema)
    if tools is not None:
        sampling["tools"] = [tool_definition(tool) for tool in tools]
    given_fields = {key: value for key, value in sampling.items() if value is not None}
    return Expression((Gen(name, given_fields, read),))


def select(name: str | None = None, choices: Sequence[str] = ()) -> Expression:
    """The choice with the highest mean log-probability of its tokens, computed exactly, without sampling.

    The choices are scored together and share all tokens before them. `state[name]` is the choice.
    """
    _check_choices(f"select({name!r})", choices)
    return Expression((Select(name, tuple(choices)),))


def _check_sampling(call: str, values: Mapping[str, object]) -> None:
    """Raises TypeError or ValueError, whose text begins with the call, for a field that no server takes."""
    fields = {name: value for name, value in values.items() if name in SamplingFields.__struct_fields__}
    data = msgspec.json.encode(fields)
    try:
        check_fields(msgspec.json.decode(data, type=SamplingFields))
    except msgspec.ValidationError as error:
        raw = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        raise TypeError(f"{call}: {type_error(error, raw)}") from None
    except RequestError as error:
        raise ValueError(f"{call}: {error}") from None


def _check_choices(call: str, choices: Sequence[str]) -> None:
    is_list = not isinstance(choices, str) and all(isinstance(each, str) and each for each in choices)
    if not is_list or not choices or len(set(choices)) != len(choices):
        raise ValueError(f"{call}: choices is {choices!r}, but must be different, non-empty texts.")


def system(*parts: Expression | str) -> Expression:
    """A chat's system message."""
    return _turn("system", parts)


def user(*parts: Expression | str) -> Expression:
    """A chat's user message."""
    return _turn("user", parts)


def assistant(*parts: Expression | str) -> Expression:
    """A chat's assistant message; it may contain `gen` and `select`, also after text that begins it."""
    return _turn("assistant", parts)


def tool(call: ToolCall | str, result: object) -> Expression:
    """The answer to one of the model's tool calls, given as the call or its id. A `result` that is no text
    is written as JSON."""
    content = result if isinstance(result, str) else msgspec.json.encode(result).decode()
    call_id = call if isinstance(call, str) else call.id
    return Expression((lambda transcript: transcript.answer_tool(call_id, content),))


def _turn(role: Role, parts: Sequence[Expression | str]) -> Expression:
    body = join(parts)
    if body.calls and role != "assistant":
        raise TypeError(f"{role}(…) contains gen or select, but only an assistant's turn is the model's.")
    return Expression((lambda transcript: transcript.open(role), *body.steps, Transcript.close))
