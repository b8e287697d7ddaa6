"""Anthropic's `cache_control`: marks in a prompt. The prompt up to a mark stays cached for a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from ...core.draft import Beginning
from ...core.leases import check_breakpoints
from ...core.validation import check_word
from .conversation import conversation_of
from .protocol import CacheControl, ContentBlock, InputMessage, PromptRequest
from .tools import definitions

TTL_S = {"5m": 300.0, "1h": 3600.0}


class _Marked(NamedTuple):
    """A block or tool with `cache_control`. `part` is the request up to its end."""

    where: str
    control: CacheControl
    part: PromptRequest


def beginnings_of(request: PromptRequest) -> list[Beginning]:
    """The prompt's beginnings to keep in the cache. Raises `RequestError` for wrong breakpoints."""
    check_breakpoints("cache_control", _count(request))  # first, as each one copies a prefix
    found = []
    for where, control, part in _marked(request):
        check_word(f"{where}.type", control.type, ("ephemeral",))
        check_word(f"{where}.ttl", control.ttl, tuple(TTL_S))
        ttl_s = TTL_S[control.ttl or "5m"]
        found.append(Beginning(conversation_of(part), definitions(part.tools), ttl_s))
    return found


def _marked(request: PromptRequest) -> Iterator[_Marked]:
    """Yields the marks in the order of Anthropic's prompts: tools, system prompt, messages.

    An empty message follows tools, system prompts and the assistant's messages, because templates expect one.
    A template that puts the tools after the system prompt makes a tool's breakpoint cover both.
    """
    nothing_said = [InputMessage(role="user", content="")]
    for index, tool in enumerate(request.tools or ()):
        if tool.cache_control is not None:
            part = replace(request, tools=(request.tools or [])[: index + 1], messages=nothing_said)
            yield _Marked(f"tools[{index}].cache_control", tool.cache_control, part)
    for index, control in _controls(request.system):
        system = request.system[: index + 1] if isinstance(request.system, list) else None
        part = replace(request, system=system, messages=nothing_said)
        yield _Marked(f"system[{index}].cache_control", control, part)
    for number, message in enumerate(request.messages):
        for index, control in _controls(message.content):
            assert isinstance(message.content, list)
            cut = replace(message, content=message.content[: index + 1])
            after = nothing_said if message.role == "assistant" else []
            part = replace(request, messages=[*request.messages[:number], cut, *after])
            yield _Marked(f"messages[{number}].content[{index}].cache_control", control, part)
    if request.cache_control is not None:
        yield _Marked("cache_control", request.cache_control, request)


def _count(request: PromptRequest) -> int:
    contents = [request.system, *(message.content for message in request.messages)]
    return (
        (request.cache_control is not None)
        + sum(tool.cache_control is not None for tool in request.tools or ())
        + sum(1 for content in contents for _ in _controls(content))
    )


def _controls(content: str | Sequence[ContentBlock] | None) -> Iterator[tuple[int, CacheControl]]:
    for index, block in enumerate(content if not isinstance(content, str | None) else ()):
        if block.cache_control is not None:
            yield index, block.cache_control
