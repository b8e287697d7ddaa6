"""Reads the arguments of `Engine`'s methods as the fields of a request."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from ...runtime.errors import RequestError
from ...runtime.messages import GrammarSpec
from ..core.conversation import tool_definitions
from ..core.draft import Prompt
from ..core.fields import JsonObject, SamplingFields, TopLogprobs
from ..core.grammar_fields import object_spec, one_spec, schema_spec, text_specs
from ..core.messages import ChatMessage, Conversation, Tool, ToolChoice
from ..core.validation import check_fields, invalid_field
from .typed import schema_and_reader
from .values import check_characters, convert, encode_json

Message: TypeAlias = Mapping[str, object]
_JSON = (Mapping, list, tuple, str, int, float, type(None))
"""Types of a `json_schema` that is not a Python type. Other checks refuse values that are no schema."""
_WRITTEN = ("json_schema", "tools", "chat_template_kwargs")
"""Fields that must be encoded as JSON, which their types alone don't ensure."""


class EngineFields(SamplingFields, kw_only=True):
    """The arguments of all methods. None means that an argument is absent."""

    logprobs: TopLogprobs | None = None
    json_schema: dict[str, object] | bool | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    model: str | None = None

    @classmethod
    def read(cls, options: Mapping[str, object]) -> EngineFields:
        """Converts a method's options. Raises `RequestError` naming the option at fault."""
        given = {name: value for name, value in options.items() if value is not None}
        for name, value in given.items():
            check_characters(name, value)
        bias = given.get("logit_bias")
        if isinstance(bias, Mapping):
            given["logit_bias"] = {str(token): value for token, value in bias.items()}
        if not isinstance(kind := given.get("json_schema"), _JSON):
            given["json_schema"] = _read_schema(kind)
        for name in _WRITTEN:
            encode_json(given.get(name), name)
        fields = convert(given, cls, "")
        check_fields(fields)
        return fields

    @property
    def definitions(self) -> list[dict[str, Any]] | None:
        """The tools as the template prints them; None without tools."""
        return tool_definitions(self.tools)

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """The prompt of a conversation. Raises `RequestError` for messages that can't be used."""
        continues = bool(self.continue_final_message)
        begins = not continues if self.add_generation_prompt is None else self.add_generation_prompt
        variables = self.chat_template_kwargs or {}
        conversation = Conversation(_read_messages(messages), begins, continues, variables)
        return Prompt(param="messages", conversation=conversation, tools=self.definitions)

    def constraint(self) -> GrammarSpec | None:
        """The constraint on the reply, or None. Raises `RequestError` if the options have several."""
        if self.json_schema is True:
            schema = object_spec(True, "json_schema")
        else:
            schema = schema_spec(encode_json(self.json_schema, "json_schema"), "json_schema")
        return one_spec([schema, *text_specs(self)])


def list_messages(messages: Iterable[Message]) -> list[Message]:
    """The messages as a list. Raises `RequestError` for a value that is not a list."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise invalid_field(
            "messages",
            f"is {reprlib.repr(messages)}, but must be a list such as "
            '[{"role": "user", "content": "Hello"}]; `generate` completes a text',
            "invalid_type",
        )
    return list(messages)


def _read_messages(messages: Iterable[Message]) -> list[ChatMessage]:
    """Converts the messages. Raises `RequestError` naming a message that can't be used."""
    converted = []
    for place, message in enumerate(list_messages(messages)):
        check_characters(f"messages[{place}]", message)
        converted.append(convert(message, ChatMessage, f"messages[{place}]"))
    return converted


def _read_schema(kind: object) -> object:
    try:
        return schema_and_reader(kind)[0]
    except TypeError as error:
        raise RequestError(str(error), param="json_schema", code="invalid_type") from error
