"""Turns the arguments of `Engine`'s methods into prepared requests."""

from __future__ import annotations

import operator
import reprlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias, TypedDict, TypeVar

import msgspec
from msgspec import Raw

from ..runtime.errors import RequestError
from ..runtime.messages import GrammarSpec, ModelReady, Tokens
from .request.constraint import enforced_as_asked
from .request.conversation import render
from .request.fields import SamplingFields
from .request.grammar_fields import (
    choice_spec,
    grammar_spec,
    object_spec,
    one_spec,
    regex_spec,
    schema_spec,
)
from .request.messages import ChatMessage, Conversation
from .request.prepare import (
    Chat,
    CheckedRequest,
    Limits,
    PreparedRequest,
    chat_of,
    namespace_of,
    new_id,
    prepare,
)
from .request.service import Service
from .request.tools import ToolUse
from .request.type_errors import type_error
from .request.validation import MAX_LOGPROBS, check_fields, check_range, check_token_ids
from .text.close_names import did_you_mean
from .work.caller import Caller

Prompt: TypeAlias = str | Sequence[int]
Prompts: TypeAlias = list[str] | list[list[int]]
Message: TypeAlias = Mapping[str, object]
T = TypeVar("T")


class _ConstraintFields(msgspec.Struct, kw_only=True):
    """The arguments that constrain a reply."""

    json_schema: dict[str, object] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


CONSTRAINTS = _ConstraintFields.__struct_fields__


class Sampling(TypedDict, total=False):
    """How a reply is sampled and when it ends. Options that are left out have the defaults of the HTTP API,
    except that a reply without `max_tokens` may fill the context.

    max_tokens: the most tokens of the reply, fewer where the prompt leaves less of the context
    min_tokens: the fewest tokens before it may end
    temperature: 0 takes the most likely token, 1 samples as the model predicts
    top_p: sample from the most likely tokens that together have this probability
    top_k: sample from this many of the most likely tokens
    min_p: leave out tokens less likely than this part of the most likely one
    repetition_penalty: above 1, tokens of the prompt and the reply become less likely
    presence_penalty: subtracted from the logits of tokens that the reply has
    frequency_penalty: the same, times how often the reply has them
    logit_bias: added to the logits, by token id
    seed: with the same one the reply is the same
    stop: the reply ends before the first of these strings
    stop_token_ids: the reply ends with the first of these tokens
    include_stop_str_in_output: it ends after the string instead
    skip_special_tokens: false leaves special tokens in the text
    ignore_eos: continue after the model's own end
    logprobs: how many alternatives to report with each token
    json_schema: the reply must match this schema, or with true be any JSON object
    regex: the reply must match it
    choice: the reply must be one of these texts
    grammar: the reply must match it, in Lark or GBNF; at most one of these four may be given
    property_order: "any" allows a schema's properties in any order, else they have the schema's
    unenforced: "allow" to leave out of a schema what can't be enforced, and list it in the reply's
        `unenforced`; else it is refused. Unknown formats are refused only with "refuse"
    complete_json: the reply matches even where `max_tokens` ends it
    cache_salt: cached prefixes are shared only among requests with the same salt
    cache_prompt: false to read nothing from the cache and leave nothing in it
    priority: lower is served earlier
    """

    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    ignore_eos: bool
    logprobs: int
    json_schema: Mapping[str, object] | bool
    regex: str
    choice: Sequence[str]
    grammar: str
    property_order: Literal["schema", "any"]
    unenforced: Literal["refuse", "allow"]
    complete_json: bool
    cache_salt: str
    cache_prompt: bool
    priority: int


_HTTP_ONLY = "only the HTTP API has it"
_INSTEAD = {
    "response_format": 'use json_schema=SCHEMA, or json_schema=True for {"type": "json_object"}',
    "guided_json": "use json_schema",
    "guided_regex": "use regex",
    "guided_choice": "use choice",
    "guided_grammar": "use grammar",
    "structured_outputs": "use json_schema, regex, choice or grammar",
    "max_completion_tokens": "use max_tokens",
    "max_new_tokens": "use max_tokens",
    "n": f"{_HTTP_ONLY}; give `generate` a list with the prompt n times",
    "tools": _HTTP_ONLY,
    "tool_choice": _HTTP_ONLY,
    "prompt_logprobs": _HTTP_ONLY,
    "stream": "call `stream` or `stream_chat`",
}
"""advice by the name of a field that is no sampling option"""


def check_names(sampling: Mapping[str, object]) -> None:
    """Raises TypeError for an unknown option, as for a function's unknown keyword."""
    known = Sampling.__annotations__
    unknown = sorted(sampling.keys() - known.keys())
    if not unknown:
        return
    name = unknown[0]
    if name in _INSTEAD:
        raise TypeError(f"{name} is no sampling option: {_INSTEAD[name]}")
    raise TypeError(
        f"unknown sampling option {name!r}.{did_you_mean(name, known)} There are {', '.join(known)}."
    )


def merged(params: Sampling | None, sampling: Sampling) -> Sampling:
    """The fields of both; `sampling` overrides `params`. Raises TypeError if `params` is no `Sampling`."""
    if params is None:
        return sampling
    if not isinstance(params, Mapping):
        raise TypeError(
            f"the second argument is {reprlib.repr(params)}, but must be a Sampling such as "
            "arbora.Sampling(max_tokens=16)"
        )
    return {**params, **sampling}


async def ask_completion(
    service: Service, model: ModelReady, prompt: Prompt, sampling: Sampling, name: str
) -> PreparedRequest:
    """`name` is the prompt's name in errors. Raises `RequestError` for a request that can't be served."""
    if isinstance(prompt, str):
        check_characters(name, prompt)
        tokens = await service.encode(prompt, True, Caller(), model.max_model_len, name)
    else:
        ids = _token_ids(prompt, name)
        check_token_ids(name, ids, model.vocab_size)
        tokens = array("i", ids).tobytes()
    if not tokens:
        raise RequestError(f"{name} must not be empty: it has no tokens.", param=name, code="invalid_value")
    fields = _fields(sampling)
    check_fields(fields)
    return _prepared(service, sampling, fields, tokens, _spec(service, sampling, fields), name)


def _token_ids(prompt: Sequence[int], name: str) -> list[int]:
    try:
        return [operator.index(token) for token in prompt]
    except TypeError:
        raise RequestError(
            f"{name} is {reprlib.repr(prompt)}, but must be a text, a list of token ids, or a list of such.",
            param=name,
            code="invalid_type",
        ) from None


async def ask_chat(
    service: Service, model: ModelReady, messages: Sequence[Message], sampling: Sampling
) -> PreparedRequest:
    """Raises `RequestError` for a request that can't be served."""
    fields = _fields(sampling)
    text = render(service.template, Conversation(_messages(messages)), tools=None)
    namespace = namespace_of(fields, scope="")
    tokens = await service.encode_rendered(text, False, namespace, Caller(), model.max_model_len, "messages")
    check_fields(fields)
    no_calls = ToolUse("none", service.tool_format)
    spec = _spec(service, sampling, fields)
    chat, grammar = chat_of(service, text, namespace, spec, no_calls, continues=False)
    return _prepared(service, sampling, fields, tokens, grammar, "messages", chat)


def _messages(messages: Sequence[Message]) -> list[ChatMessage]:
    if isinstance(messages, str) or not isinstance(messages, Iterable):
        raise RequestError(
            f"messages is {reprlib.repr(messages)}, but must be a list such as "
            '[{"role": "user", "content": "Hello"}]; `generate` completes a text.',
            param="messages",
            code="invalid_type",
        )
    converted = []
    for place, message in enumerate(messages):
        check_characters(f"messages[{place}]", message)
        converted.append(_convert(message, ChatMessage, f"messages[{place}]"))
    return converted


def _prepared(
    service: Service,
    sampling: Sampling,
    fields: SamplingFields,
    prompt: Tokens,
    grammar: GrammarSpec | None,
    prompt_name: str,
    chat: Chat | None = None,
) -> PreparedRequest:
    check_range("max_tokens", fields.max_tokens, 0, None)
    logprobs: int | None = _convert(sampling.get("logprobs"), int | None, "logprobs")  # type: ignore[arg-type]
    check_range("logprobs", logprobs, 0, MAX_LOGPROBS)
    checked = CheckedRequest(
        request_id=new_id("engine"),
        fields=fields,
        limits=Limits(fields.max_tokens, "max_tokens", prompt_name),
        prompts=[prompt],
        namespace=namespace_of(fields, scope=""),
        tenant="",
        grammar=grammar,
        logprobs=logprobs,
        prompt_logprobs=None,
        chat=chat,
    )
    return prepare(service, checked)


def _spec(service: Service, sampling: Sampling, fields: SamplingFields) -> GrammarSpec | None:
    return enforced_as_asked(_grammar(sampling), fields, service.config.unenforced)


def _fields(sampling: Sampling) -> SamplingFields:
    _check_characters(sampling)
    own = ("logprobs", *CONSTRAINTS)
    given = {name: value for name, value in sampling.items() if value is not None and name not in own}
    if bias := sampling.get("logit_bias"):
        given["logit_bias"] = {str(token): value for token, value in bias.items()}
    return _convert(given, SamplingFields, "")


def _check_characters(sampling: Sampling) -> None:
    for name, value in sampling.items():
        check_characters(name, value)


def check_characters(name: str, value: object) -> None:
    """Raises `RequestError` for text with half of a surrogate pair, which is no character."""
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        half, place = error.object[error.start], error.start
        message = (
            f"{name} has {half!r} at character {place} of {reprlib.repr(error.object)}: half of a surrogate "
            "pair is no character. Remove it, or decode the text with errors='replace'."
        )
        raise RequestError(message, param=name, code="invalid_value") from None
    except (TypeError, ValueError, OverflowError):
        return  # other checks refuse it


def _convert(value: object, kind: type[T], param: str) -> T:
    """`param` is the value's name, empty for the sampling fields as a whole."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise type_error(error, _as_json(value), param) from error


def _as_json(value: object) -> Mapping[str, Raw]:
    """The JSON of each field of a dict, or of the value itself under an empty name."""
    fields = value if isinstance(value, dict) else {"": value}
    return {str(name): _raw(each) for name, each in fields.items()}


def _raw(value: object) -> Raw:
    try:
        return Raw(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError):
        return Raw(b"")  # no JSON: an error shows its type alone


def _json_of(value: object, param: str) -> Raw:
    try:
        return Raw(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError) as error:
        message = f"{param} can't be written as JSON: {error}."
        raise RequestError(message, param=param, code="invalid_value") from None


def _grammar(sampling: Sampling) -> GrammarSpec | None:
    given = {name: value for name, value in sampling.items() if name in CONSTRAINTS}
    fields = _convert(given, _ConstraintFields, "")
    if fields.json_schema is True:
        schema = object_spec(True, "json_schema")
    else:
        schema = schema_spec(_json_of(fields.json_schema, "json_schema"), "json_schema")
    return one_spec(
        (
            schema,
            regex_spec(fields.regex, "regex"),
            choice_spec(fields.choice, "choice"),
            grammar_spec(fields.grammar, "grammar"),
        )
    )
