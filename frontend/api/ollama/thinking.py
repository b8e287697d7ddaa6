"""Ollama's `think`: the variables that chat templates of reasoning models have."""

from __future__ import annotations

from ....runtime.errors import RequestError
from ...core.service import Service
from ...core.validation import check_word
from .protocol import PromptRequest

LEVELS = ("low", "medium", "high")


def check_think(service: Service, request: PromptRequest) -> None:
    """Raises `RequestError` for an unknown level, or if the model doesn't think."""
    think = request.think
    if isinstance(think, str):
        check_word("think", think, LEVELS)
    if think and service.reasoning is None:
        shown = repr(think) if isinstance(think, str) else "true"
        raise RequestError(
            f"think is {shown}, but this model does not support thinking: leave it out.",
            param="think",
            code="unsupported_parameter",
        )


def template_variables(request: PromptRequest) -> dict[str, object]:
    """Without `think` the template's own default holds. `chat_template_kwargs` overrides the others."""
    variables: dict[str, object] = {}
    if request.think is not None:
        variables["enable_thinking"] = bool(request.think)
    if isinstance(request.think, str):
        variables["reasoning_effort"] = request.think
    return {**variables, **(request.chat_template_kwargs or {})}
