"""The parts of a prompt, as digests: its tools and its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

PartKind = Literal["tool", "system", "message"]
_encode = msgspec.json.encode


class Part(NamedTuple):
    """One tool, the system prompt, or one message. Parts with the same digest are the same.

    `number` counts the tools, or the messages as the chat template gets them. Digests hold for this process.
    """

    kind: PartKind
    number: int
    role: str
    digest: int
    characters: int


@dataclass(frozen=True)
class Outline:
    """The parts of a prompt: tools, then messages. A prompt without messages has none.

    `messages` are those that the chat template got; `rules` are the prompt rules that changed them.
    """

    parts: tuple[Part, ...] = ()
    messages: Sequence[Mapping[str, Any]] = ()
    rules: tuple[str, ...] = ()


NO_OUTLINE = Outline()


def outline_of(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, rules: tuple[str, ...]
) -> Outline:
    listed = [_tool(index, tool) for index, tool in enumerate(tools or ())]
    said = [_message(index, message) for index, message in enumerate(messages)]
    return Outline((*listed, *said), messages, rules)


def _tool(index: int, tool: Mapping[str, Any]) -> Part:
    text = _encode(tool)
    return Part("tool", index, "", hash(text), len(text))


def _message(index: int, message: Mapping[str, Any]) -> Part:
    """Digests a message without its calls' ids: clients make them up, and few templates print them."""
    role, content = message["role"], message["content"]
    calls = tuple((call["function"]["name"], _text(call)) for call in message.get("tool_calls", ()))
    digest = hash((role, content, message.get("reasoning_content"), message.get("name"), calls))
    size = len(content) + sum(len(arguments) for _, arguments in calls)
    return Part("system" if role == "system" and index == 0 else "message", index, role, digest, size)


def _text(call: Mapping[str, Any]) -> str | bytes:
    arguments = call["function"]["arguments"]
    return arguments if isinstance(arguments, str) else _encode(arguments)
