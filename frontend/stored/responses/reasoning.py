"""Reasoning: the variables of the chat template, and reasoning items that clients send back."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from ...api.openai.protocol import REASONING_EFFORTS, VERBOSITIES
from ...core.messages import template_variables
from ...core.validation import check_word, invalid_field
from .protocol import SUMMARIES, Item, PromptFields

_MARK = "arbora."


def check_variables(request: PromptFields) -> None:
    """Raises `RequestError` for a wrong field of `reasoning`, or a wrong `text.verbosity`."""
    if request.reasoning is not None:
        check_word("reasoning.effort", request.reasoning.effort, REASONING_EFFORTS)
        check_word("reasoning.summary", request.reasoning.summary, SUMMARIES)
    if request.text is not None:
        check_word("text.verbosity", request.text.verbosity, VERBOSITIES)


def read_variables(request: PromptFields) -> Mapping[str, object]:
    """The template's variables for `reasoning` and `text.verbosity`, none by default."""
    effort = None if request.reasoning is None else request.reasoning.effort
    return template_variables(
        request.chat_template_kwargs,
        thinks=None if effort is None else effort != "none",
        effort=effort,
        verbosity=None if request.text is None else request.text.verbosity,
    )


def encoded(reasoning: str) -> str:
    """The `encrypted_content` of a reasoning item: its text in base64.

    It lets a client send the reasoning back. It is no secret, because the item shows the text too.
    """
    return _MARK + base64.urlsafe_b64encode(reasoning.encode()).decode()


def reasoning_of(item: Item, where: str) -> str:
    """The text of a reasoning item; empty if another server has encrypted it."""
    if isinstance(item.content, str):
        return item.content
    shown = "\n".join(part.text or "" for part in item.content or ())
    if shown:
        return shown
    content = item.encrypted_content or ""
    if not content.startswith(_MARK):
        return ""
    try:
        return base64.b64decode(content.removeprefix(_MARK), altchars=b"-_", validate=True).decode()
    except ValueError:
        raise invalid_field(
            f"{where}.encrypted_content", "was changed: send a reasoning item as it came in the response"
        ) from None
