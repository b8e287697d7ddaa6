"""Turns the arguments of `Engine`'s chats into conversations and prompts."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from ...runtime.errors import RequestError
from ..core.conversation import tool_definitions
from ..core.draft import Prompt
from ..core.fields import JsonObject
from ..core.messages import ChatMessage, Conversation, Tool, ToolChoice
from .values import check_characters, convert, encode_json

Message: TypeAlias = Mapping[str, object]


class ChatFields(msgspec.Struct, kw_only=True):
    """The arguments of a chat that are not of its sampling."""

    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonObject | None = None

    @classmethod
    def read(cls, options: Mapping[str, object]) -> ChatFields:
        """Raises `RequestError` for values that can't be used. Ignores other options."""
        given = {name: options[name] for name in cls.__struct_fields__ if options.get(name) is not None}
        for name, value in given.items():
            check_characters(name, value)
            encode_json(value, name)
        return convert(given, cls, "")

    @property
    def definitions(self) -> list[dict[str, Any]] | None:
        """The tools as the template prints them; None without tools."""
        return tool_definitions(self.tools)

    def prompt(self, messages: Sequence[Message]) -> Prompt:
        """Raises `RequestError` for messages that can't be used."""
        continues = bool(self.continue_final_message)
        begins = not continues if self.add_generation_prompt is None else self.add_generation_prompt
        variables = self.chat_template_kwargs or {}
        conversation = Conversation(read_messages(messages), begins, continues, variables)
        return Prompt(param="messages", conversation=conversation, tools=self.definitions)


def listed(messages: Iterable[Message]) -> list[Message]:
    """Raises `RequestError` if it is no list."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise RequestError(
            f"messages is {reprlib.repr(messages)}, but must be a list such as "
            '[{"role": "user", "content": "Hello"}]; `generate` completes a text.',
            param="messages",
            code="invalid_type",
        )
    return list(messages)


def read_messages(messages: Iterable[Message]) -> list[ChatMessage]:
    """Raises `RequestError` naming the message that can't be used."""
    converted = []
    for place, message in enumerate(listed(messages)):
        check_characters(f"messages[{place}]", message)
        converted.append(convert(message, ChatMessage, f"messages[{place}]"))
    return converted
