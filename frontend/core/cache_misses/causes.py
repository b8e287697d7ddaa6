"""Finds the first difference between a prompt and the nearest earlier one, and its cause."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from ....runtime.messages import Tokens
from ..text.prompt_rules import DATE, DATED_CLOCK
from .outline import Outline, Part
from .recent_prompts import Nearest

Cause = Literal[
    "new",
    "short",
    "checkpoint",
    "evicted",
    "namespace",
    "volatile",
    "tools",
    "system",
    "history",
    "template",
    "off",
]
AROUND = 96
"""Tokens that are decoded on each side of the first difference to find its line."""
Decode = Callable[[Tokens], str]
ValueKind = Literal["billing_header", "uuid", "time", "date", "id", "several"]

PATTERNS: dict[ValueKind, re.Pattern[str]] = {
    "billing_header": re.compile(r"x-anthropic-billing-header:[^\n]*"),
    "uuid": re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"),
    "time": re.compile(rf"\b{DATED_CLOCK}|\b1[5-9]\d{{8}}(?:\d{{3}}|\.\d+)?\b"),
    "date": re.compile(rf"\b{DATE}\b"),
    "id": re.compile(
        r"\b(?:req|request|session|sess|trace|span|run|msg|call|toolu|user|chatcmpl|resp|id)[_-][A-Za-z0-9_-]{6,}"
        r"|\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b"
    ),
}


class FirstDifference(NamedTuple):
    """The first difference between two prompts. `part` is None if it lies in no single part."""

    cause: Cause
    part: Part | None
    note: str


def find_difference(tokens: Tokens, outline: Outline, near: Nearest, decode: Decode) -> FirstDifference:
    """Finds the first tool, system prompt or message that differs, and the cause. If none differs, the chat
    template rendered equal messages as other text, or the reply was not sent back as the model wrote it."""
    line, earlier = read_line(tokens, near.shared, decode), read_line(near.tokens, near.shared, decode)
    part = find_changed_part(outline.parts, near.seen.parts)
    kind = find_changing_value(line, earlier)
    if kind is not None and (part is not None or not outline.parts):
        return FirstDifference("volatile", part, f"A line differs only in its {kind.replace('_', ' ')}.")
    if not outline.parts or not near.seen.parts:
        return FirstDifference("history", None, "The text was changed here.")
    if part is None:
        return _find_after_equal_parts(outline, near, decode)
    if part.kind == "tool":
        return FirstDifference("tools", part, _describe_tools(outline.parts, near.seen.parts))
    if part.kind == "system":
        return FirstDifference("system", part, "The system prompt was changed.")
    return FirstDifference("history", part, _describe_history(part, near.seen.parts))


def find_changed_part(parts: tuple[Part, ...], earlier: tuple[Part, ...]) -> Part | None:
    """The first part that differs from the earlier prompt's part at that position. None if one outline
    begins with the other. A changed system prompt comes before changed tools, as in most templates' texts."""
    tools, said = _split(parts)
    earlier_tools, earlier_said = _split(earlier)
    if _has_system(said) != _has_system(earlier_said) or (
        _has_system(said) and said[0].digest != earlier_said[0].digest
    ):
        return said[0] if said else None
    for index in range(max(len(tools), len(earlier_tools))):
        ours, theirs = tools[index : index + 1], earlier_tools[index : index + 1]
        if [part.digest for part in ours] != [part.digest for part in theirs]:
            return (ours or theirs)[0]
    pairs = zip(said, earlier_said, strict=False)
    return next((ours for ours, theirs in pairs if ours.digest != theirs.digest), None)


def _split(parts: tuple[Part, ...]) -> tuple[list[Part], list[Part]]:
    return (
        [part for part in parts if part.kind == "tool"],
        [part for part in parts if part.kind != "tool"],
    )


def _has_system(said: list[Part]) -> bool:
    return bool(said) and said[0].kind == "system"


def _describe_tools(parts: tuple[Part, ...], earlier: tuple[Part, ...]) -> str:
    ours = [part.digest for part in parts if part.kind == "tool"]
    theirs = [part.digest for part in earlier if part.kind == "tool"]
    if sorted(ours) == sorted(theirs):
        return "The same tools come in another order."
    added, removed = len(set(ours) - set(theirs)), len(set(theirs) - set(ours))
    return f"Tools that the earlier prompt had not: {added}; tools that are missing now: {removed}."


def _describe_history(part: Part, earlier: tuple[Part, ...]) -> str:
    same = next((each for each in earlier if each.digest == part.digest), None)
    if same is not None:
        return f"This message was message {same.number} in the earlier prompt: some were removed or moved."
    return "This message was changed, or messages before it were added or removed."


def _find_after_equal_parts(outline: Outline, near: Nearest, decode: Decode) -> FirstDifference:
    """Finds the first difference after equal messages. The next message is the reply, if it was sent back."""
    said, earlier = _split(outline.parts)[1], _split(near.seen.parts)[1]
    if near.shared < near.seen.prompt_tokens or len(said) <= len(earlier):
        note = "The chat template renders earlier messages in another way now that others follow."
        return FirstDifference("template", None, note)
    reply, text = said[len(earlier)], decode(near.tokens[4 * near.seen.prompt_tokens :])
    if reply.role == "assistant" and _is_in(outline.messages[len(earlier)], text):
        note = "The chat template left out a part of the reply, such as its reasoning, or wrote it anew."
        return FirstDifference("template", reply, note)
    return FirstDifference("history", reply, "The reply was not sent back as the model wrote it.")


def _is_in(message: Mapping[str, Any], reply: str) -> bool:
    """Whether the reply has the message's text, and the names and arguments of its calls."""
    texts = [message["content"]]
    for call in message.get("tool_calls", ()):
        texts += [call["function"]["name"], _normalize_arguments(call["function"]["arguments"])]
    words = _keep_letters(reply)
    return all(_keep_letters(text) in words for text in texts)


def _normalize_arguments(arguments: object) -> str:
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return str(arguments)
    return json.dumps(value, ensure_ascii=False)


def _keep_letters(text: str) -> str:
    return "".join(filter(str.isalnum, text))


def read_line(tokens: Tokens, position: int, decode: Decode) -> str:
    """The line that contains the token at `position`, cut to `AROUND` tokens on each side."""
    before = decode(tokens[4 * max(0, position - AROUND) : 4 * position])
    after = decode(tokens[4 * position : 4 * (position + AROUND)])
    return before.rpartition("\n")[2] + after.partition("\n")[0]


def find_changing_value(line: str, earlier: str) -> ValueKind | None:
    """The kind of value in which two lines differ. None if they also differ elsewhere, or are equal."""
    if line == earlier:
        return None
    for kind, pattern in PATTERNS.items():
        if pattern.sub(kind, line) == pattern.sub(kind, earlier):
            return kind
    return "several" if _mask(line) == _mask(earlier) else None


def _mask(line: str) -> str:
    for kind, pattern in PATTERNS.items():
        line = pattern.sub(kind, line)
    return line
