"""Turns the arguments of `Engine`'s methods into prepared requests."""

from __future__ import annotations

import operator
import reprlib
from array import array
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from ...runtime.errors import RequestError
from ...runtime.messages import GrammarSpec, ModelReady, Tokens
from ..core.constraint import enforced_as_asked
from ..core.fields import MAX_LOGPROBS, SamplingFields
from ..core.grammar_fields import (
    choice_spec,
    grammar_spec,
    object_spec,
    one_spec,
    regex_spec,
    schema_spec,
)
from ..core.prepare import (
    Chat,
    CheckedRequest,
    Limits,
    PreparedRequest,
    chat_of,
    namespace_of,
    new_id,
    prepare,
)
from ..core.requested_tools import ToolUse, tool_use
from ..core.service import Service
from ..core.tool_choice import calls_wanted
from ..core.validation import check_choices, check_fields, check_range, check_token_ids
from .conversation import ChatFields, Message, conversation_tokens, text_tokens
from .sampling import ChatOptions, Sampling, ScoreOptions, TokenizeOptions
from .typed import schema_and_reader
from .values import check_characters, convert, json_of

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
MOST_TOKENS = 1 << 20  # of a text that is only tokenized, unless the context is longer
CONSTRAINTS = _ConstraintFields.__struct_fields__
_NO_SAMPLING_FIELD = {"logprobs", *CONSTRAINTS, *ChatFields.__struct_fields__}


async def ask_completion(
    service: Service, model: ModelReady, prompt: Prompt, sampling: Sampling, name: str
) -> PreparedRequest:
    """`name` is the prompt's name in errors. Raises `RequestError` for a request that can't be served."""
    if isinstance(prompt, str):
        tokens = await text_tokens(service, prompt, model.max_model_len, name)
    else:
        ids = _token_ids(prompt, name)
        check_token_ids(name, ids, model.vocab_size)
        tokens = array("i", ids).tobytes()
    if not tokens:
        raise RequestError(f"{name} must not be empty: it has no tokens.", param=name, code="invalid_value")
    fields = _fields(sampling)
    grammar = enforced_as_asked(_grammar(sampling), fields, service.config)
    return _prepared(service, sampling, fields, tokens, grammar, name)


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
    service: Service, model: ModelReady, messages: Sequence[Message], options: ChatOptions
) -> PreparedRequest:
    """Raises `RequestError` for a request that can't be served."""
    fields, chat_fields = _fields(options), ChatFields.read(options)
    conversation = chat_fields.conversation(messages)
    namespace = namespace_of(fields, scope="")
    text, tokens = await conversation_tokens(
        service, chat_fields, conversation, namespace, model.max_model_len
    )
    asked, use = _grammar(options), ToolUse("none", service.tool_format)
    if chat_fields.tools or chat_fields.tool_choice is not None:
        choice, several = chat_fields.tool_choice, chat_fields.parallel_tool_calls
        use = tool_use(calls_wanted(choice, chat_fields.definitions, several), service.tool_format, asked)
    spec = enforced_as_asked(use.grammar or asked, fields, service.config)
    chat, grammar = chat_of(service, text, namespace, spec, use, continues=conversation.continues_last)
    return _prepared(service, options, fields, tokens, grammar, "messages", chat)


async def ask_score(
    service: Service, tokens: Tokens, start: int, options: ScoreOptions, prompt_name: str
) -> PreparedRequest:
    """A request for the log-probabilities of the tokens from position `start` on, without a reply."""
    given = {name: options.get(name) for name in ("cache_salt", "cache_prompt", "cache_lease", "priority")}
    fields = _fields({**given, "max_tokens": 0, "prompt_logprobs": 0, "prompt_logprobs_start": start})
    return _prepared(service, {}, fields, tokens, None, prompt_name)


async def tokenize(
    service: Service, most: int, prompt: str | Sequence[Message], options: TokenizeOptions
) -> Tokens:
    """The tokens of a text or a conversation; at most `most`, else raises `RequestError`."""
    if isinstance(prompt, str):
        return await text_tokens(service, prompt, most, "prompt")
    fields, chat_fields = _fields({"cache_salt": options.get("cache_salt")}), ChatFields.read(options)
    namespace, conversation = namespace_of(fields, scope=""), chat_fields.conversation(prompt)
    return (await conversation_tokens(service, chat_fields, conversation, namespace, most))[1]


def _prepared(
    service: Service,
    sampling: Mapping[str, object],
    fields: SamplingFields,
    prompt: Tokens,
    grammar: GrammarSpec | None,
    prompt_name: str,
    chat: Chat | None = None,
) -> PreparedRequest:
    check_choices(1, fields.n or 1, service.config.max_waiting)
    logprobs: int | None = convert(sampling.get("logprobs"), int | None, "logprobs")  # type: ignore[arg-type]
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
        prompt_logprobs=fields.prompt_logprobs,
        chat=chat,
    )
    return prepare(service, checked)


def _fields(options: Mapping[str, object]) -> SamplingFields:
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


def _grammar(options: Mapping[str, object]) -> GrammarSpec | None:
    given = {name: value for name, value in options.items() if name in CONSTRAINTS}
    if not isinstance(kind := given.get("json_schema"), _JSON):
        given["json_schema"] = _schema_of_type(kind)
    fields = convert(given, _ConstraintFields, "")
    if fields.json_schema is True:
        schema = object_spec(True, "json_schema")
    else:
        schema = schema_spec(json_of(fields.json_schema, "json_schema"), "json_schema")
    return one_spec(
        (
            schema,
            regex_spec(fields.regex, "regex"),
            choice_spec(fields.choice, "choice"),
            grammar_spec(fields.grammar, "grammar"),
        )
    )


def _schema_of_type(kind: object) -> object:
    try:
        return schema_and_reader(kind)[0]
    except TypeError as error:
        raise RequestError(str(error), param="json_schema", code="invalid_type") from error
