"""Ollama's `options` as sampling fields and limits."""

from __future__ import annotations

import logging

from ....runtime.messages import ModelReady
from ...core.draft import Limits
from ...core.fields import SamplingFields
from ...core.validation import check_declared, check_fields, check_stop_strings, invalid_field
from .fields import FIXED_OPTIONS
from .protocol import Options, PromptRequest

TEMPERATURE, TOP_K, TOP_P, MIN_P = 0.8, 40, 0.9, 0.0
"""The defaults of Ollama's API."""
REST_OF_CONTEXT = (-1, -2)
"""Values of `num_predict` that mean no limit."""
MAX_WARNINGS = 100  # values of `num_ctx` that the log names
_warned: set[int] = set()
log = logging.getLogger(__name__)


def sampling_fields(request: PromptRequest) -> SamplingFields:
    """The options as sampling fields. Raises `RequestError` for an option that can't be served."""
    options = request.options or Options()
    _check(options)
    fields = SamplingFields.copy_from(
        request,
        temperature=TEMPERATURE if options.temperature is None else options.temperature,
        top_k=TOP_K if options.top_k is None else options.top_k,
        top_p=TOP_P if options.top_p is None else options.top_p,
        min_p=MIN_P if options.min_p is None else options.min_p,
        repetition_penalty=options.repeat_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        seed=None if options.seed == -1 else options.seed,
        stop=options.stop,
    )
    check_fields(fields)
    return fields


def _check(options: Options) -> None:
    """Checks the options' ranges. Errors name the options as the client wrote them."""
    for name, field in FIXED_OPTIONS.items():
        field.check(f"options.{name}", bytes(getattr(options, name)))
    predict = options.num_predict
    if predict is not None and predict < 1 and predict not in REST_OF_CONTEXT:
        raise invalid_field(
            "options.num_predict", f"is {predict}, but must be at least 1, or -1 or -2 for no limit"
        )
    check_declared(options, "options.")
    check_stop_strings(
        "options.stop", [options.stop] if isinstance(options.stop, str) else options.stop or []
    )


def limits(request: PromptRequest, model: ModelReady) -> Limits:
    """The limits of a reply. `num_ctx` limits prompt and reply together, at most to the model's context."""
    options = request.options or Options()
    context = options.num_ctx or model.max_model_len
    if context > model.max_model_len:
        _warn_of_context(context, model.max_model_len)
        context = model.max_model_len
    predict = None if options.num_predict in REST_OF_CONTEXT else options.num_predict
    return Limits(predict, "options.num_predict", context, "options.num_ctx")


def _warn_of_context(asked: int, max_tokens: int) -> None:
    """Warns of a `num_ctx` above the model's context. Logs each value once."""
    if asked not in _warned and len(_warned) < MAX_WARNINGS:
        _warned.add(asked)
        log.warning(
            "options.num_ctx is %d, but the model's context has %d tokens: taking those", asked, max_tokens
        )
