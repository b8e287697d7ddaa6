"""Turns Anthropic's messages and blocks into a conversation as chat templates know it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import msgspec

from ...core.conversation import MAX_ARGUMENTS
from ...core.grammar_fields import is_null
from ...core.messages import CalledFunction, ChatMessage, Conversation, MessageToolCall
from ...core.type_errors import type_error
from ...core.validation import check_count, check_word, invalid_field, missing_field
from .protocol import ROLES, ContentBlock, InputMessage, PromptRequest
from .thinking import thinking_of, variables_of
from .tools import template_id

_content = msgspec.json.Decoder(str | list[ContentBlock])


class _Placed(NamedTuple):
    """A block and its path in the request, such as `messages[0].content[1]`."""

    where: str
    block: ContentBlock


def conversation_of(request: PromptRequest) -> Conversation:
    """Converts the messages. Raises `RequestError` naming the block that can't be served. If the last message
    is the assistant's, the reply continues it.
    """
    if not request.messages:
        raise invalid_field("messages", "must not be empty")
    messages = [*_system(request.system), *_chat(request.messages)]
    continues = request.messages[-1].role == "assistant"
    if continues:
        _check_may_continue(request.messages, messages[-1])
    return Conversation(
        messages,
        begins_reply=not continues,
        continues_last=continues,
        variables=variables_of(request),
    )


def _system(system: str | list[ContentBlock] | None) -> list[ChatMessage]:
    if not system:
        return []
    return [ChatMessage(role="system", content=_text(_placed("system", system), "the system prompt"))]


def _chat(messages: Sequence[InputMessage]) -> Iterator[ChatMessage]:
    """The messages of a chat. Neighbouring messages of one role are one turn, as in Anthropic's API."""
    for index, message in enumerate(messages):
        check_word(f"messages[{index}].role", message.role, ROLES)
    for role, turn in groupby(enumerate(messages), lambda entry: entry[1].role):
        blocks = [
            each for index, message in turn for each in _placed(f"messages[{index}].content", message.content)
        ]
        if role == "user":
            yield from _user(blocks)
        elif role == "assistant":
            yield _assistant(blocks)
        else:
            yield ChatMessage(role="system", content=_text(blocks, "a system message"))


def _placed(where: str, content: str | list[ContentBlock]) -> list[_Placed]:
    if isinstance(content, str):
        return [_Placed(where, ContentBlock(type="text", text=content))]
    return [_Placed(f"{where}[{index}]", block) for index, block in enumerate(content)]


def _user(blocks: Sequence[_Placed]) -> Iterator[ChatMessage]:
    """The messages of a user's turn: each tool result is one, and so are the texts between two results."""
    for is_result, group in groupby(blocks, lambda placed: placed.block.type == "tool_result"):
        if is_result:
            yield from map(_result, group)
        else:
            yield ChatMessage(role="user", content=_text(group, "a user's message"))
    if not blocks:
        yield ChatMessage(role="user", content="")


def _result(placed: _Placed) -> ChatMessage:
    """The message of a tool's result. Templates have no `is_error`, so its text says so."""
    where, block = placed
    if not block.tool_use_id:
        raise missing_field(f"{where}.tool_use_id")
    text = ""
    if not is_null(block.content):
        try:
            content = _content.decode(block.content)
        except msgspec.ValidationError as error:
            raise type_error(error, {}, f"{where}.content") from None
        text = _text(_placed(f"{where}.content", content), "a tool's result")
    if block.is_error and not text.lower().startswith("error"):
        text = f"Error: {text}"
    return ChatMessage(role="tool", tool_call_id=template_id(block.tool_use_id), content=text)


def _assistant(blocks: Sequence[_Placed]) -> ChatMessage:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[MessageToolCall] = []
    for placed in blocks:
        match placed.block.type:
            case "thinking":
                thoughts.append(thinking_of(placed.block, placed.where))
            case "redacted_thinking":
                pass  # encrypted thinking, which only its own server can read
            case "tool_use":
                calls.append(_call(placed))
            case _:
                texts.append(_text([placed], "an assistant's message"))
    return ChatMessage(
        role="assistant",
        content="\n".join(texts),
        reasoning_content="\n".join(filter(None, thoughts)) or None,
        tool_calls=calls or None,
    )


def _call(placed: _Placed) -> MessageToolCall:
    where, block = placed
    for name in ("id", "name"):
        if not getattr(block, name):
            raise missing_field(f"{where}.{name}")
    arguments = "{}" if is_null(block.input) else bytes(block.input).decode()
    if not arguments.startswith("{"):
        raise invalid_field(f"{where}.input", "must be an object: the arguments of the call", "invalid_type")
    check_count(f"{where}.input", arguments, MAX_ARGUMENTS, "characters")
    function = CalledFunction(name=block.name or "", arguments=arguments)
    return MessageToolCall(id=template_id(block.id or ""), type="function", function=function)


def _text(blocks: Iterable[_Placed], place: str) -> str:
    """The texts of blocks, joined by line breaks. `place` says where the blocks are."""
    texts = []
    for where, block in blocks:
        if block.type != "text":
            raise invalid_field(
                where,
                f"has the type {block.type!r}, which this server can't read in {place}: send its "
                "content as a block of type 'text', or leave it out",
                "unsupported_content",
            )
        if block.text is None:
            raise missing_field(f"{where}.text")
        texts.append(block.text)
    return "\n".join(texts)


def _check_may_continue(messages: Sequence[InputMessage], last: ChatMessage) -> None:
    content = messages[-1].content
    ends = content[-1].type if isinstance(content, list) and content else "text"
    if last.tool_calls or ends != "text":
        param = f"messages[{len(messages) - 1}].content"
        advice = "add a user's message with its tool_result" if last.tool_calls else "add a user's message"
        found = "tool_use" if last.tool_calls else ends
        raise invalid_field(
            param, f"has a block of type {found!r}, and no reply can continue a message after it: {advice}"
        )
