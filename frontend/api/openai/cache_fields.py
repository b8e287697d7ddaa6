"""OpenAI's fields of the prompt cache, as leases."""

from __future__ import annotations

import re
from typing import Protocol

from msgspec.structs import replace

from ....runtime.messages import LeaseTerms
from ...core.fields import MAX_TTL_S
from ...core.leases import check_breakpoints, conversation_lease
from ...core.messages import ChatMessage
from ...core.validation import check_key, check_word, invalid_field
from .protocol import ChatRequest, PromptCacheOptions

DEFAULT_TTL_S = 1800.0
RETENTIONS = {"in_memory": DEFAULT_TTL_S, "in-memory": DEFAULT_TTL_S, "24h": 86_400.0}
MODES = ("implicit", "explicit")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
MARK = "prompt_cache_breakpoint"


class CacheFields(Protocol):
    """The fields of the prompt cache, which requests of all of OpenAI's APIs have."""

    stream: bool | None
    prompt_cache_key: str | None
    prompt_cache_options: PromptCacheOptions | None
    prompt_cache_retention: str | None


def check_cache_fields(request: CacheFields) -> None:
    """Checks the cache fields. Raises `RequestError` for a wrong value, or for fields that exclude each
    other."""
    options = request.prompt_cache_options
    check_key("prompt_cache_key", request.prompt_cache_key)
    check_word("prompt_cache_retention", request.prompt_cache_retention, tuple(RETENTIONS))
    if options is not None:
        check_word("prompt_cache_options.mode", options.mode, MODES)
        lease_seconds(request)
    if prewarms(request) and request.stream:
        raise invalid_field(
            "prompt_cache_options.prewarm",
            "computes the prompt without a reply, so there is nothing to stream: leave stream out",
        )


def lease_seconds(request: CacheFields) -> float:
    """Seconds for which the request's leases last. Raises `RequestError` for a wrong time."""
    options = request.prompt_cache_options
    if options is None or options.ttl is None:
        return RETENTIONS[request.prompt_cache_retention or "in_memory"]
    found = re.fullmatch(r"([0-9]{1,6})([smhd])", options.ttl)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= MAX_TTL_S:
        raise invalid_field(
            "prompt_cache_options.ttl",
            f"is {options.ttl!r}, but must be a time such as '30m' or '12h', of at most 7 days",
        )
    return seconds


def prewarms(request: CacheFields) -> bool:
    """Whether the request only computes its prompt, for later requests."""
    return request.prompt_cache_options is not None and request.prompt_cache_options.prewarm is True


def cache_leases(request: CacheFields, *, by_default: bool = False) -> list[LeaseTerms]:
    """The lease of a request's conversation, if its checked fields ask for one, or `by_default`."""
    options = request.prompt_cache_options
    is_asked = options is not None or request.prompt_cache_key or request.prompt_cache_retention
    if (is_asked or by_default) and (options is None or options.mode != "explicit"):
        return [conversation_lease(lease_seconds(request), request.prompt_cache_key or "")]
    return []


def messages_to_breakpoints(request: ChatRequest) -> list[list[ChatMessage]]:
    """The messages up to each breakpoint. Raises `RequestError`."""
    marked = [
        (index, place, part.prompt_cache_breakpoint.mode)
        for index, message in enumerate(request.messages)
        for place, part in enumerate(message.content if isinstance(message.content, list) else ())
        if part.prompt_cache_breakpoint is not None
    ]
    check_breakpoints(MARK, len(marked))  # checked first, as each breakpoint copies messages
    found = []
    for index, place, mode in marked:
        check_word(f"messages[{index}].content[{place}].{MARK}.mode", mode, ("explicit",))
        message = request.messages[index]
        assert isinstance(message.content, list)
        cut = replace(message, content=message.content[: place + 1])
        found.append([*request.messages[:index], cut])
    return found
