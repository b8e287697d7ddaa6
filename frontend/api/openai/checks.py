"""Checks of the fields that only OpenAI's chat and text completions have."""

from __future__ import annotations

from ....runtime.errors import RequestError
from ...core.validation import check_fields
from .protocol import GenerationFields


def check_generation(request: GenerationFields) -> None:
    """Raises `RequestError` naming a field that is out of range or can't be used with the others."""
    check_fields(request)
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise RequestError(
            f"best_of is {request.best_of}, but choosing among more replies than n is not supported: "
            f"set it to n, which is {request.n or 1}, or leave it out.",
            param="best_of",
            code="unsupported_parameter",
        )
    if request.stream_options is not None and not request.stream:
        raise RequestError(
            "stream_options is only allowed when stream is true.",
            param="stream_options",
            code="invalid_value",
        )
    if request.prompt_logprobs is not None and request.stream:
        raise RequestError(
            "prompt_logprobs is not available when stream is true.",
            param="prompt_logprobs",
            code="invalid_value",
        )
