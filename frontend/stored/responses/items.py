"""Checks the items of a request, and turns them into messages as chat templates know them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from ....runtime.errors import RequestError
from ...core.conversation import MAX_ARGUMENTS
from ...core.messages import CalledFunction, ChatMessage, MessageToolCall
from ...core.text.quoted_grammar import quoted_text
from ...core.validation import check_count, check_word, invalid_field, missing_field
from .protocol import PREFIXES, ROLES, Item, Part
from .reasoning import reasoning_of
from .tools import LOCAL_SHELL, prompt_name

_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_CALLS = ("function_call", "custom_tool_call", "local_shell_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")


def check_items(items: Sequence[Item], where: str = "input") -> None:
    """Raises `RequestError` naming the item that can't be served."""
    for index, item in enumerate(items):
        _check(item, f"{where}[{index}]")


def check_kind(item: Item, where: str) -> None:
    """Raises `RequestError` for an item of a type that can't be read."""
    kind = kind_of(item)
    if kind not in PREFIXES:
        raise RequestError(
            f"{where} has the type {kind!r}, which this server can't read: leave it out, or send its content "
            "as a message.",
            param=f"{where}.type",
            code="unsupported_content",
        )


def _check(item: Item, where: str) -> None:
    check_kind(item, where)
    kind = kind_of(item)
    if kind == "message":
        if item.role is None:
            raise missing_field(f"{where}.role")
        check_word(f"{where}.role", item.role, ROLES)
        _text(item.content, f"{where}.content")
    elif kind in _OUTPUTS:
        if not _call_id(item):
            raise missing_field(f"{where}.call_id")
        _text(item.output, f"{where}.output")
    elif kind in _CALLS:
        _call(item, where, (", ", ": "))
    else:
        reasoning_of(item, where)


def kind_of(item: Item) -> str:
    return item.type or "message"


def messages_of(items: Sequence[Item], separators: tuple[str, str]) -> Iterator[ChatMessage]:
    """The messages of checked items. Reasoning, an answer and calls in a row are one message.

    `separators` are those of the JSON in the model's own calls, so that a call is written as the model wrote
    it.
    """
    for role, group in groupby(enumerate(items), lambda entry: _role(entry[1])):
        if role != "assistant":
            for index, item in group:
                yield _message(item, role, f"input[{index}]")
            continue
        for turn in _turns(group):
            yield _assistant(turn, separators)


def _role(item: Item) -> str:
    kind = kind_of(item)
    if kind in _OUTPUTS:
        return "tool"
    return item.role or "" if kind == "message" else "assistant"


def _message(item: Item, role: str, where: str) -> ChatMessage:
    if role == "tool":
        return ChatMessage(
            role="tool", tool_call_id=_call_id(item), content=_text(item.output, f"{where}.output")
        )
    return ChatMessage(role=role, content=_text(item.content, f"{where}.content"))


def _turns(group: Iterable[tuple[int, Item]]) -> Iterator[list[tuple[int, Item]]]:
    """The assistant's items in turns: an answer comes after reasoning, and calls come after both."""
    turn: list[tuple[int, Item]] = []
    reached = 0
    for index, item in group:
        rank = {"reasoning": 0, "message": 1}.get(kind_of(item), 2)
        if turn and (rank < reached or rank == reached == 1):
            yield turn
            turn = []
        turn.append((index, item))
        reached = rank
    yield turn


def _assistant(turn: Sequence[tuple[int, Item]], separators: tuple[str, str]) -> ChatMessage:
    text = ""
    thoughts: list[str] = []
    calls: list[MessageToolCall] = []
    for index, item in turn:
        where = f"input[{index}]"
        match kind_of(item):
            case "reasoning":
                thoughts.append(reasoning_of(item, where))
            case "message":
                text = _text(item.content, f"{where}.content")
            case _:
                calls.append(_call(item, where, separators))
    return ChatMessage(
        role="assistant",
        content=text,
        reasoning_content="\n".join(filter(None, thoughts)) or None,
        tool_calls=calls or None,
    )


def _call_id(item: Item) -> str:
    """The id of a call. An output of the local shell may have it as `id`."""
    return item.call_id or (item.id or "" if kind_of(item) == "local_shell_call_output" else "")


def _call(item: Item, where: str, separators: tuple[str, str]) -> MessageToolCall:
    if not item.call_id:
        raise missing_field(f"{where}.call_id")
    kind = kind_of(item)
    if kind == "local_shell_call":
        function = CalledFunction(
            name=LOCAL_SHELL, arguments=_shell_arguments(item.action, separators, where)
        )
    else:
        if not item.name:
            raise missing_field(f"{where}.name")
        field = "arguments" if kind == "function_call" else "input"
        given = item.arguments if kind == "function_call" else item.input
        if given is None:
            raise missing_field(f"{where}.{field}")
        check_count(f"{where}.{field}", given, MAX_ARGUMENTS, "characters")
        if kind == "custom_tool_call":
            given = f'{{"input"{separators[1]}"{quoted_text(given)}"}}'
        function = CalledFunction(name=prompt_name(item.name, item.namespace), arguments=given)
    return MessageToolCall(id=item.call_id, type="function", function=function)


def _shell_arguments(action: Mapping[str, object] | None, separators: tuple[str, str], where: str) -> str:
    if not action or not action.get("command"):
        raise missing_field(f"{where}.action.command")
    names = ("command", "working_directory", "timeout_ms")
    given = {name: action[name] for name in names if action.get(name) is not None}
    return json.dumps(given, ensure_ascii=False, separators=separators)


def _text(content: str | Sequence[Part] | None, where: str) -> str:
    """The text of a content or output, whose parts are joined by line breaks."""
    if content is None:
        raise missing_field(where)
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        if part.type not in (*_TEXTS, "refusal"):
            raise invalid_field(
                f"{where}[{index}]",
                f"has the type {part.type!r}, but this model reads only text: send it as a "
                "part of the type 'input_text', or leave it out",
                "unsupported_content",
            )
        text = part.refusal if part.type == "refusal" else part.text
        if text is None:
            raise missing_field(f"{where}[{index}].{'refusal' if part.type == 'refusal' else 'text'}")
        texts.append(text)
    return "\n".join(texts)
