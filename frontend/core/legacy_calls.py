"""Turns `function_call` and the role "function", from before OpenAI had tools, into tool calls."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...runtime.errors import RequestError
from .messages import ChatMessage, MessageToolCall


def with_tool_calls(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """The messages with each `function_call` as a tool call, and each function's result as a tool's message.

    A result answers the last call of its function. Ids depend only on the position, so that the next turn
    renders the same text. Raises `RequestError` for a message that has both kinds of calls.
    """
    if not any(message.role == "function" or message.function_call for message in messages):
        return messages
    ids: dict[str, str] = {}
    found = []
    for index, message in enumerate(messages):
        where, new_id = f"messages[{index}]", f"call{index:05}"  # Mistral's templates want nine characters
        if message.function_call is not None:
            ids[message.function_call.name] = new_id
            message = _called(message, new_id, where)
        elif message.role == "function":
            if not message.name:
                raise RequestError(
                    f"{where}.name is missing: a function's message must name the function that it answers.",
                    param=f"{where}.name",
                    code="missing_field",
                )
            call = ids.get(message.name, new_id)
            message = msgspec.structs.replace(message, role="tool", tool_call_id=call)
        found.append(message)
    return found


def _called(message: ChatMessage, new_id: str, where: str) -> ChatMessage:
    assert message.function_call is not None
    if message.role != "assistant" or message.tool_calls:
        why = "the message has tool_calls too" if message.tool_calls else f"the role is {message.role!r}"
        raise RequestError(
            f"{where}.function_call can't be used, as {why}: give an assistant's calls as tool_calls alone.",
            param=f"{where}.function_call",
            code="invalid_value",
        )
    call = MessageToolCall(id=new_id, type="function", function=message.function_call)
    return msgspec.structs.replace(message, function_call=None, tool_calls=[call])
