"""Other forms of a conversation, for chat templates that refuse it as the client wrote it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import groupby, takewhile
from typing import Any, NamedTuple

from ...runtime.errors import RequestError
from .text.chat_template import UnrenderableError

Message = dict[str, Any]
Render = Callable[[list[Message]], str]
Form = Callable[[list[Message]], list[Message]]
"""A change of messages. It turns a conversation's beginning into a beginning of the changed conversation."""
MAX_TO_SEARCH = 256  # messages of a conversation in which the refused message is searched
_BETWEEN = "\n\n"
_SHOWN = 60  # characters of a refused message in the error


class Accepted(NamedTuple):
    """The first form that the template accepts, the messages in this form, and their text."""

    form: Form
    messages: list[Message]
    text: str


def first_accepted(
    render: Render, messages: list[Message], *, loses_system_messages: bool = False
) -> Accepted:
    """Renders the messages in each form until the template accepts one: at most `len(FORMS)` renders.

    `loses_system_messages`: only forms in which no message but the first is a system message are rendered.

    A template that refuses messages refuses them in later turns too. So a later turn gets the same form or a
    later one, which changes only its new messages. This does not hold in two cases. A template may refuse a
    conversation only because the user has said nothing yet: forms that make system messages the user's are
    not rendered then. A template may refuse neighbours of one role only among the new messages: then earlier
    neighbours are merged too.

    Raises `UnrenderableError` if the template refuses all forms.
    """
    base = _single_system(messages) if loses_system_messages else messages
    tried: list[list[Message]] = []
    refusal: UnrenderableError | None = None
    for form in FORMS:
        changed = form(messages)
        if (
            changed in tried
            or (loses_system_messages and _has_later_systems(changed))
            or (_has_user(changed) and not _has_user(base))
        ):
            continue
        try:
            return Accepted(form, changed, render(changed))
        except UnrenderableError as error:
            tried.append(changed)
            refusal = error
    assert refusal is not None, "the form with one system message at the start is always rendered"
    raise refusal


def place_of_refusal(render: Render, messages: list[Message], reason: str) -> str:
    """Says at which message the template fails: the last one of the shortest beginning that it refuses for
    this reason. Renders about log2(`MAX_TO_SEARCH`) beginnings. Empty for a longer conversation.
    """
    if len(messages) > MAX_TO_SEARCH:
        return ""

    def is_refused(count: int) -> bool:
        try:
            render(FORMS[-1](messages[:count]))
        except RequestError as error:
            return isinstance(error, UnrenderableError) and error.reason == reason
        return False

    count = bisect_left(range(len(messages)), True, lo=1, key=is_refused)
    message = messages[count - 1]
    calls = ", ".join(call["function"]["name"] for call in message.get("tool_calls", ()))
    text = message["content"] or (f"calls of {calls}" if calls else "")
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    counted = ", counting the system prompt" if messages[0]["role"] == "system" else ""
    return (
        f" It fails at message {count} of {len(messages)}{counted}, of the role {message['role']!r}: "
        f"{shown!r}."
    )


def _unchanged(messages: list[Message]) -> list[Message]:
    return messages


def _single_leading_system(messages: list[Message]) -> list[Message]:
    """Joins the system messages at the start into one."""
    start = _leading_systems(messages)
    return [*([_joined(messages[:start])] if start else ()), *messages[start:]]


def _later_systems_as_user(messages: list[Message]) -> list[Message]:
    """Turns the system messages after the start into the user's messages."""
    start = _leading_systems(messages)
    return [*messages[:start], *_systems_as_user(messages[start:])]


def _single_system(messages: list[Message]) -> list[Message]:
    return _later_systems_as_user(_single_leading_system(messages))


def _systems_as_user(messages: list[Message]) -> list[Message]:
    """Turns all system messages into the user's messages."""
    return [{**each, "role": "user"} if each["role"] == "system" else each for each in messages]


_FORMS_OF_SYSTEMS: tuple[Form, ...] = (
    _unchanged,
    _single_leading_system,
    _later_systems_as_user,
    _single_system,
    _systems_as_user,
)
FORMS: tuple[Form, ...] = (
    *_FORMS_OF_SYSTEMS,
    *(lambda messages, form=form: _merged(form(messages)) for form in _FORMS_OF_SYSTEMS),
)


def _has_later_systems(messages: Sequence[Message]) -> bool:
    return any(message["role"] == "system" for message in messages[1:])


def _has_user(messages: Sequence[Message]) -> bool:
    return any(message["role"] == "user" for message in messages)


def _leading_systems(messages: Sequence[Message]) -> int:
    return sum(1 for _ in takewhile(lambda message: message["role"] == "system", messages))


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Joins successive messages of the user, and successive messages of the assistant."""
    found: list[Message] = []
    for role, group in groupby(messages, lambda message: message["role"]):
        turn = list(group)
        found += [_joined(turn)] if role in ("user", "assistant") else turn
    return found


def _joined(messages: Sequence[Message]) -> Message:
    """The first message with the texts, reasoning and calls of all the messages."""
    first, *others = messages
    if not others:
        return first
    joined = {**first, "content": _BETWEEN.join(filter(None, (each["content"] for each in messages)))}
    if thoughts := [each["reasoning_content"] for each in messages if "reasoning_content" in each]:
        joined["reasoning_content"] = "\n".join(thoughts)
    if calls := [call for each in messages for call in each.get("tool_calls", ())]:
        joined["tool_calls"] = calls
    return joined
