"""Finds what a chat template leaves out of a conversation."""

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
_ID = "a1b2c3d4e"  # Mistral's templates want nine letters and digits
_CALL = {
    "id": _ID,
    "type": "function",
    "function": {"name": "sample_call", "arguments": {}},
}
_USER = {"role": "user", "content": "Hello"}
_RESULT = {"role": "tool", "name": "sample_call", "tool_call_id": _ID, "content": "sample_result"}
_SEVERAL_SYSTEMS = (("system", "system", "user"), ("system", "user", "assistant", "system", "user"))
_ANSWER = {"role": "assistant", "content": "Hello."}


class TemplateSupport(NamedTuple):
    """What the template prints: tools (if there are any), earlier calls, and their results; one system
    message, several of them, and a later one at its own place."""

    tools: bool
    calls: bool
    results: bool
    system: bool
    several_systems: bool
    later_system: bool


def find_support(render: Render, *, with_tools: bool) -> TemplateSupport:
    """Renders samples. `with_tools`: the conversation has tools, and so may get another template.

    A template that leaves out the tools, or refuses all samples of calls, counts as one that prints no tools,
    calls and results, and a template that leaves out calls as one without results, so that a prompt has one
    form of calls. A template that refuses a sample of system messages does not lose them.
    """
    tools = [_TOOL] if with_tools else None
    prints_tools = with_tools and _prints("sample_tool", render, [_USER], tools)
    calls = results = False
    if prints_tools or not with_tools:
        called = [{"role": "assistant", "content": content, "tool_calls": [_CALL]} for content in ("", None)]
        turns = [[_USER, call, *rest] for call in called for rest in ((), (_RESULT,), (_RESULT, _ANSWER))]
        # Kimi's template prints the id, in which models write the name, in place of the name.
        printed = ((word, turn) for turn in turns for word in ("sample_call", *[_ID] * (turn[-1] in called)))
        calls = any(_prints(word, render, turn, tools) for word, turn in printed)
        results = calls and any(_prints("sample_result", render, turn, tools) for turn in turns)
    return TemplateSupport(
        prints_tools,
        calls,
        results,
        system=_keeps_texts(render, ("system", "user"), tools),
        several_systems=all(_keeps_texts(render, roles, tools) for roles in _SEVERAL_SYSTEMS),
        later_system=_keeps_place(render, tools),
    )


def _keeps_texts(render: Render, roles: Sequence[str], tools: Tools | None) -> bool:
    """Whether the template renders all texts of a chat with these roles, or refuses the chat."""
    texts = [f"<{number}>" for number in range(len(roles))]
    chat = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    try:
        rendered = render(chat, tools)
    except RequestError:
        return True
    return all(text in rendered for text in texts)


def _keeps_place(render: Render, tools: Tools | None) -> bool:
    """Whether a system message after other messages is rendered where it is."""
    chat = [{"role": role, "content": f"<{role}>"} for role in ("system", "user", "assistant", "user")]
    try:
        text = render([*chat, {"role": "system", "content": "<last>"}], tools)
    except RequestError:
        return False
    return -1 < text.rfind("<user>") < text.find("<last>")


def _prints(word: str, render: Render, turn: Sequence[Message], tools: Tools | None) -> bool:
    return any(word in text for text in _texts(render, turn, tools))


def _texts(render: Render, turn: Sequence[Message], tools: Tools | None) -> Iterator[str]:
    for system in ([], [{"role": "system", "content": "Be brief."}]):
        with contextlib.suppress(RequestError):
            yield render([*system, *turn], tools)
