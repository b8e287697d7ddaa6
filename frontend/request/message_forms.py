"""Other forms of a conversation, for chat templates that refuse it as the client wrote it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import groupby, takewhile
from typing import Any

from ...runtime.errors import RequestError
from ..text.chat_template import UnrenderableError

Message = dict[str, Any]
Render = Callable[[list[Message]], str]
Change = Callable[[list[Message]], list[Message]]
_BETWEEN = "\n\n"
_SHOWN = 60  # characters of a refused message in the error


def render_first_form(
    render: Render, messages: list[Message], loses_system_messages: bool = False
) -> tuple[str, list[Message]]:
    """The text of the first form that the template accepts, and the messages of this form.

    `loses_system_messages`: only forms in which no message but the first is a system message are rendered.

    The forms change system messages, then also merge neighbouring messages of one role. A template that
    refuses a form of one turn refuses this form of all later turns too. So all turns take the same form, and
    each begins with the text of the one before.

    Raises `UnrenderableError` naming the message at which the last form fails.
    """
    tried: list[list[Message]] = []
    reason = ""
    for change in _CHANGES:
        form = change(messages)
        if form in tried or (loses_system_messages and _has_more_systems(form)):
            continue
        try:
            return render(form), form
        except UnrenderableError as error:
            tried.append(form)
            reason = error.reason
    raise UnrenderableError(reason, _place(render, messages, reason))


def _as_it_is(messages: list[Message]) -> list[Message]:
    return messages


def _one_at_the_start(messages: list[Message]) -> list[Message]:
    """The system messages at the start become one."""
    start = _system_prompts(messages)
    return [*([_one(messages[:start])] if start else ()), *messages[start:]]


def _none_amid(messages: list[Message]) -> list[Message]:
    """The system messages after the start become the user's."""
    start = _system_prompts(messages)
    return [*messages[:start], *_without_systems(messages[start:])]


def _only_one(messages: list[Message]) -> list[Message]:
    return _none_amid(_one_at_the_start(messages))


def _without_systems(messages: list[Message]) -> list[Message]:
    """All system messages become the user's."""
    return [{**each, "role": "user"} if each["role"] == "system" else each for each in messages]


_OF_SYSTEMS = (_as_it_is, _one_at_the_start, _none_amid, _only_one, _without_systems)
_CHANGES: tuple[Change, ...] = (
    *_OF_SYSTEMS,
    *(lambda messages, change=change: _merged(change(messages)) for change in _OF_SYSTEMS),
)


def _has_more_systems(messages: Sequence[Message]) -> bool:
    return any(message["role"] == "system" for message in messages[1:])


def _system_prompts(messages: Sequence[Message]) -> int:
    return sum(1 for _ in takewhile(lambda message: message["role"] == "system", messages))


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Neighbouring messages of the user become one, and those of the assistant."""
    found: list[Message] = []
    for role, group in groupby(messages, lambda message: message["role"]):
        turn = list(group)
        found += [_one(turn)] if role in ("user", "assistant") else turn
    return found


def _one(messages: Sequence[Message]) -> Message:
    """The first message with the texts, reasoning and calls of all."""
    first, *others = messages
    if not others:
        return first
    one = {**first, "content": _BETWEEN.join(filter(None, (each["content"] for each in messages)))}
    if thoughts := [each["reasoning_content"] for each in messages if "reasoning_content" in each]:
        one["reasoning_content"] = "\n".join(thoughts)
    if calls := [call for each in messages for call in each.get("tool_calls", ())]:
        one["tool_calls"] = calls
    return one


def _place(render: Render, messages: list[Message], reason: str) -> str:
    """Says which message is the last of the shortest beginning that the template refuses for this reason."""

    def is_refused(count: int) -> bool:
        try:
            render(_CHANGES[-1](messages[:count]))
        except RequestError as error:
            return isinstance(error, UnrenderableError) and error.reason == reason
        return False

    count = bisect_left(range(len(messages)), True, lo=1, key=is_refused)
    message = messages[count - 1]
    calls = ", ".join(call["function"]["name"] for call in message.get("tool_calls", ()))
    text = message["content"] or (f"calls of {calls}" if calls else "")
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f" It fails at message {count} of {len(messages)}, of the role {message['role']!r}: {shown!r}."
