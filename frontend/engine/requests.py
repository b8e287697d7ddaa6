"""Turns the arguments of `Engine`'s methods into jobs."""

from __future__ import annotations

import operator
import reprlib
from array import array
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from ...runtime.errors import RequestError
from ...runtime.messages import GrammarSpec, Tokens
from ..core import draft, prepare
from ..core.fields import MAX_LOGPROBS, SamplingFields
from ..core.grammar_fields import (
    choice_spec,
    grammar_spec,
    object_spec,
    one_spec,
    regex_spec,
    schema_spec,
)
from ..core.prepare import Job
from ..core.requested_tools import CallsWanted
from ..core.service import Service
from ..core.tool_choice import calls_wanted
from ..core.validation import check_fields, check_range
from ..core.work.caller import Caller
from .conversation import ChatFields, Message
from .sampling import ChatOptions, Sampling, ScoreOptions, TokenizeOptions
from .typed import schema_and_reader
from .values import check_characters, convert, encode_json

Prompt: TypeAlias = str | Sequence[int]
Prompts: TypeAlias = list[str] | list[list[int]]


class _ConstraintFields(msgspec.Struct, kw_only=True):
    """The arguments that constrain a reply."""

    json_schema: dict[str, object] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


_JSON = (Mapping, list, tuple, str, int, float, type(None))
"""what `json_schema` has if it is no type; other checks refuse what is no schema"""
CONSTRAINTS = _ConstraintFields.__struct_fields__
_NO_SAMPLING_FIELD = {"logprobs", *CONSTRAINTS, *ChatFields.__struct_fields__}


async def prepare_completion(service: Service, prompt: Prompt, sampling: Sampling, name: str) -> Job:
    """`name` is the prompt's name in errors. Raises `RequestError` for a request that can't be served."""
    return await _prepare(service, sampling, _read_prompt(prompt, name))


def _read_prompt(prompt: Prompt, name: str) -> draft.Prompt:
    if not isinstance(prompt, str):
        return draft.Prompt(param=name, items=[_read_token_ids(prompt, name)])
    check_characters(name, prompt)
    return draft.Prompt(param=name, items=[prompt], special=True)


def _read_token_ids(prompt: Sequence[int], name: str) -> list[int]:
    try:
        return [operator.index(token) for token in prompt]
    except TypeError:
        raise RequestError(
            f"{name} is {reprlib.repr(prompt)}, but must be a text, a list of token ids, or a list of such.",
            param=name,
            code="invalid_type",
        ) from None


async def prepare_chat(service: Service, messages: Sequence[Message], options: ChatOptions) -> Job:
    """Raises `RequestError` for a request that can't be served."""
    fields = ChatFields.read(options)
    calls = calls_wanted(fields.tool_choice, fields.definitions, fields.parallel_tool_calls)
    return await _prepare(service, options, fields.prompt(messages), calls)


async def prepare_score(
    service: Service, tokens: Tokens, start: int, options: ScoreOptions, prompt_name: str
) -> Job:
    """A request for the log-probabilities of the tokens from position `start` on, without a reply."""
    given = {name: options.get(name) for name in ("cache_salt", "cache_prompt", "cache_lease", "priority")}
    scoring = {**given, "max_tokens": 0, "prompt_logprobs": 0, "prompt_logprobs_start": start}
    prompt = draft.Prompt(param=prompt_name, items=[array("i", tokens).tolist()])
    return await _prepare(service, scoring, prompt)


async def tokenize(
    service: Service, prompt: str | Sequence[Message], options: TokenizeOptions, most: int = 0
) -> Tokens:
    """The tokens of a text or a conversation; at most `most`, else raises `RequestError`."""
    if isinstance(prompt, str):
        return await prepare.tokenize(service, _read_prompt(prompt, "prompt"), None, Caller(), most=most)
    salt = _read_fields({"cache_salt": options.get("cache_salt")}).cache_salt
    conversation = ChatFields.read(options).prompt(prompt)
    return await prepare.tokenize(service, conversation, salt, Caller(), most=most)


async def _prepare(
    service: Service,
    options: Mapping[str, object],
    prompt: draft.Prompt,
    calls: CallsWanted = draft.NO_CALLS,
) -> Job:
    fields = _read_fields(options)
    logprobs: int | None = convert(options.get("logprobs"), int | None, "logprobs")  # type: ignore[arg-type]
    check_range("logprobs", logprobs, 0, MAX_LOGPROBS)
    drafted = draft.Draft(
        fields=fields,
        prompt=prompt,
        limits=draft.Limits(fields.max_tokens, "max_tokens"),
        is_chat=prompt.conversation is not None,
        calls=calls,
        constraint=_read_grammar(options),
        logprobs=logprobs,
        prompt_logprobs=fields.prompt_logprobs,
    )
    return await prepare.prepare(service, prepare.new_id("engine"), drafted, Caller())


def _read_fields(options: Mapping[str, object]) -> SamplingFields:
    """Raises `RequestError` naming the option at fault."""
    for name, value in options.items():
        check_characters(name, value)
    given = {
        name: value for name, value in options.items() if value is not None and name not in _NO_SAMPLING_FIELD
    }
    bias = options.get("logit_bias")
    if isinstance(bias, Mapping):
        given["logit_bias"] = {str(token): value for token, value in bias.items()}
    fields = convert(given, SamplingFields, "")
    check_fields(fields)
    return fields


def _read_grammar(options: Mapping[str, object]) -> GrammarSpec | None:
    given = {name: value for name, value in options.items() if name in CONSTRAINTS}
    if not isinstance(kind := given.get("json_schema"), _JSON):
        given["json_schema"] = _read_schema(kind)
    fields = convert(given, _ConstraintFields, "")
    if fields.json_schema is True:
        schema = object_spec(True, "json_schema")
    else:
        schema = schema_spec(encode_json(fields.json_schema, "json_schema"), "json_schema")
    return one_spec(
        (
            schema,
            regex_spec(fields.regex, "regex"),
            choice_spec(fields.choice, "choice"),
            grammar_spec(fields.grammar, "grammar"),
        )
    )


def _read_schema(kind: object) -> object:
    try:
        return schema_and_reader(kind)[0]
    except TypeError as error:
        raise RequestError(str(error), param="json_schema", code="invalid_type") from error
