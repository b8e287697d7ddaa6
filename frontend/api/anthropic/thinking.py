"""Anthropic's `thinking`: the variables that chat templates of reasoning models have, and thinking blocks."""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import Literal

from ...core.messages import template_variables
from ...core.validation import check_declared, check_word, invalid_field, missing_field
from .protocol import DISPLAYS, EFFORTS, THINKING_TYPES, ContentBlock, MessagesRequest, PromptRequest

Shown = Literal["summarized", "omitted", "hidden"]
"""How a reply shows its thinking: unchanged, as a signature alone, or not at all."""

_OMITTED = "omitted."
_SHOWN = "shown."
_DIGEST_CHARACTERS = 32


def check_thinking(request: PromptRequest) -> None:
    """Raises `RequestError` for a wrong field of `thinking`, or a wrong `output_config.effort`."""
    if request.output_config is not None:
        check_word("output_config.effort", request.output_config.effort, EFFORTS)
    thinking = request.thinking
    if thinking is None:
        return
    check_word("thinking.type", thinking.type, THINKING_TYPES)
    check_word("thinking.display", thinking.display, DISPLAYS)
    if thinking.type != "enabled":
        return
    if thinking.budget_tokens is None:
        raise missing_field("thinking.budget_tokens")
    check_declared(thinking, "thinking.")
    if isinstance(request, MessagesRequest) and thinking.budget_tokens >= request.max_tokens:
        raise invalid_field(
            "thinking.budget_tokens",
            f"is {thinking.budget_tokens}, but must be less than max_tokens, which is {request.max_tokens}",
        )


def variables_of(request: PromptRequest) -> dict[str, object]:
    """The variables of the chat template."""
    thinking, output = request.thinking, request.output_config
    return template_variables(
        request.chat_template_kwargs,
        thinks=None if thinking is None else thinking.type != "disabled",
        budget=thinking.budget_tokens if thinking is not None and thinking.type == "enabled" else None,
        effort=None if output is None else output.effort,
    )


def shown(request: PromptRequest) -> Shown:
    thinking = request.thinking
    if thinking is None:
        return "summarized"
    if thinking.type == "disabled":
        return "hidden"
    return "omitted" if thinking.display == "omitted" else "summarized"


def signature(thinking: str, *, is_omitted: bool) -> str:
    """The signature of a thinking block: a digest of its text, or the text itself if the block omits it.

    Some clients drop blocks without a signature. Nothing checks it.
    """
    if is_omitted:
        return _OMITTED + base64.urlsafe_b64encode(thinking.encode()).decode()
    return _SHOWN + sha256(thinking.encode()).hexdigest()[:_DIGEST_CHARACTERS]


def thinking_of(block: ContentBlock, where: str) -> str:
    """The text of a thinking block; empty if another server's signature hides it."""
    if block.thinking is None:
        raise missing_field(f"{where}.thinking")
    found = block.signature or ""
    if block.thinking or not found.startswith(_OMITTED):
        return block.thinking
    try:
        return base64.b64decode(found.removeprefix(_OMITTED), altchars=b"-_", validate=True).decode()
    except ValueError:
        raise invalid_field(
            f"{where}.signature", "was changed: send a thinking block as it came in the reply"
        ) from None
