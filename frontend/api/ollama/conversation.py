"""Turns Ollama's messages into a conversation as chat templates know it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from ...core.messages import ChatMessage, Conversation, MessageToolCall, template_variables
from ...core.service import Service
from ...core.validation import check_word, invalid_field
from .protocol import ChatRequest, GenerateRequest, Message, PromptRequest

LEVELS = ("low", "medium", "high")  # values of `think` besides true and false
ROLES = ("system", "user", "assistant", "tool")
UNKNOWN_CALL = "callnone0"
"""The id in a result that answers no call of the conversation."""


def chat_conversation(request: ChatRequest) -> Conversation:
    """Converts the messages. Raises `RequestError` naming the message that can't be served. If the last
    message is a text of the assistant's, the reply continues it.
    """
    messages = request.messages or []
    for index, message in enumerate(messages):
        _check(message, f"messages[{index}]")
    last = messages[-1]
    continues = last.role == "assistant" and bool(last.content) and not last.tool_calls
    return Conversation(
        list(_with_call_ids(messages)),
        begins_reply=not continues,
        continues_last=continues,
        variables=_variables(request),
    )


def prompt_conversation(request: GenerateRequest) -> Conversation:
    system = [ChatMessage(role="system", content=request.system)] if request.system else []
    user = ChatMessage(role="user", content=request.prompt)
    return Conversation([*system, user], variables=_variables(request))


def _check(message: Message, where: str) -> None:
    check_word(f"{where}.role", message.role, ROLES)
    if message.images:
        raise invalid_field(
            f"{where}.images",
            f"has {len(message.images)}, but this model reads text alone: leave them out",
            "unsupported_content",
        )


def _with_call_ids(messages: Sequence[Message]) -> Iterator[ChatMessage]:
    """The messages, with an id for each call and result that has none, because templates need ids.

    A result without an id answers the first open call of its tool, or the first one if it names no tool.
    """
    calls_so_far = 0
    open_calls: list[tuple[str, str]] = []  # (id, tool's name) of calls without a result
    for message in messages:
        calls = []
        for call in message.tool_calls or ():
            calls.append(_with_id(call, calls_so_far))
            calls_so_far += 1
        if calls:
            open_calls = [(call.id or "", call.function.name) for call in calls]
        yield ChatMessage(
            role=message.role,
            content=message.content or "",
            name=message.tool_name,
            tool_calls=calls or None,
            tool_call_id=_answered_id(message, open_calls) if message.role == "tool" else None,
            reasoning_content=message.thinking or None,
        )


def _with_id(call: MessageToolCall, number: int) -> MessageToolCall:
    """The call with an id. A new one has nine letters and digits, as Mistral's templates require."""
    return msgspec.structs.replace(call, id=call.id or f"call{number:05d}", type="function")


def _answered_id(message: Message, open_calls: list[tuple[str, str]]) -> str:
    """The id of the call that a result answers, which is then no longer open."""
    if message.tool_call_id:
        return message.tool_call_id
    fitting = [each for each in open_calls if message.tool_name in (None, each[1])]
    if not fitting:
        return UNKNOWN_CALL
    open_calls.remove(fitting[0])
    return fitting[0][0]


def check_think(service: Service, request: PromptRequest) -> None:
    """Raises `RequestError` for an unknown level, or if the model doesn't think."""
    think = request.think
    if isinstance(think, str):
        check_word("think", think, LEVELS)
    if think and service.reasoning is None:
        shown = repr(think) if isinstance(think, str) else "true"
        raise invalid_field(
            "think",
            f"is {shown}, but this model does not support thinking: leave it out",
            "unsupported_parameter",
        )


def _variables(request: PromptRequest) -> dict[str, object]:
    think = request.think
    return template_variables(
        request.chat_template_kwargs,
        thinks=None if think is None else bool(think),
        effort=think if isinstance(think, str) else None,
    )
