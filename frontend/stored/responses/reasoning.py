"""Reasoning: the variables of the chat template, and reasoning items that clients send back."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from ...core.validation import check_word, invalid_field
from .protocol import EFFORTS, SUMMARIES, VERBOSITIES, Item, PromptFields

_MARK = "arbora."


def check_variables(request: PromptFields) -> None:
    """Raises `RequestError` for a wrong field of `reasoning`, or a wrong `text.verbosity`."""
    if request.reasoning is not None:
        check_word("reasoning.effort", request.reasoning.effort, EFFORTS)
        check_word("reasoning.summary", request.reasoning.summary, SUMMARIES)
    if request.text is not None:
        check_word("text.verbosity", request.text.verbosity, VERBOSITIES)


def template_variables(request: PromptFields) -> Mapping[str, object]:
    """The template's variables for `reasoning`, none by default. `chat_template_kwargs` overrides them."""
    variables: dict[str, object] = {}
    if request.reasoning is not None and request.reasoning.effort is not None:
        variables["reasoning_effort"] = request.reasoning.effort
        variables["enable_thinking"] = request.reasoning.effort != "none"
    if request.text is not None and request.text.verbosity is not None:
        variables["verbosity"] = request.text.verbosity
    return {**variables, **(request.chat_template_kwargs or {})}


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
