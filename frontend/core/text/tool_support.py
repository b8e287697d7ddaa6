"""Finds what a chat template leaves out of a conversation with tools."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ....runtime.errors import RequestError

Message = dict[str, Any]
Tools = list[dict[str, Any]]
Render = Callable[[list[Message], Tools | None], str]

_PARAMETERS = {"type": "object", "properties": {}}
_TOOL = {
    "type": "function",
    "function": {"name": "sample_tool", "description": "A sample.", "parameters": _PARAMETERS},
}
_CALL = {  # Mistral's templates want an id of nine letters and digits
    "id": "a1b2c3d4e",
    "type": "function",
    "function": {"name": "sample_call", "arguments": {}},
}
_USER = {"role": "user", "content": "Hello"}
_RESULT = {"role": "tool", "name": "sample_call", "tool_call_id": _CALL["id"], "content": "sample_result"}
_ANSWER = {"role": "assistant", "content": "Hello."}


class ToolSupport(NamedTuple):
    """Whether the template prints tools (if there are any), earlier calls, and their results."""

    tools: bool
    calls: bool
    results: bool


def find_support(render: Render, *, with_tools: bool) -> ToolSupport:
    """Renders samples. `with_tools`: the conversation has tools, and so may get another template.

    A template that leaves out the tools, or refuses all samples, counts as one that prints nothing, and a
    template that leaves out calls as one without results, so that a prompt has one form of calls.
    """
    tools = [_TOOL] if with_tools else None
    if with_tools and not _prints("sample_tool", render, [_USER], tools):
        return ToolSupport(False, False, False)
    called = [{"role": "assistant", "content": content, "tool_calls": [_CALL]} for content in ("", None)]
    turns = [[_USER, call, *rest] for call in called for rest in ((), (_RESULT,), (_RESULT, _ANSWER))]
    calls = any(_prints("sample_call", render, turn, tools) for turn in turns)
    results = calls and any(_prints("sample_result", render, turn, tools) for turn in turns)
    return ToolSupport(with_tools, calls, results)


def _prints(word: str, render: Render, turn: Sequence[Message], tools: Tools | None) -> bool:
    return any(word in text for text in _texts(render, turn, tools))


def _texts(render: Render, turn: Sequence[Message], tools: Tools | None) -> Iterator[str]:
    for system in ([], [{"role": "system", "content": "Be brief."}]):
        with contextlib.suppress(RequestError):
            yield render([*system, *turn], tools)
