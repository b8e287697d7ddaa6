"""Turns the arguments of `Engine`'s methods into jobs."""

from __future__ import annotations

import operator
import reprlib
from array import array
from collections.abc import Sequence
from typing import TypeAlias

from ...runtime.messages import Tokens
from ..core import draft, prepare
from ..core import pooling as pooled
from ..core.prepare import Job
from ..core.requested_tools import CallsWanted
from ..core.service import Service
from ..core.tool_choice import calls_wanted
from ..core.validation import check_range, invalid_field
from ..core.work.caller import Caller
from .fields import EngineFields, Message
from .sampling import ChatOptions, Sampling, ScoreOptions, TokenizeOptions
from .values import check_characters

Prompt: TypeAlias = str | Sequence[int]
Prompts: TypeAlias = list[str] | list[list[int]]
_CACHE = ("cache_salt", "cache_prompt", "cache_lease", "priority", "model")


async def prepare_completion(service: Service, prompt: Prompt, sampling: Sampling, name: str) -> Job:
    """The job for a prompt, which errors call `name`. Raises `RequestError` if it can't be served."""
    return await _prepare(service, EngineFields.read(sampling), _read_prompt(prompt, name))


async def prepare_chat(service: Service, messages: Sequence[Message], options: ChatOptions) -> Job:
    """The job for a conversation. Raises `RequestError` if it can't be served."""
    fields = EngineFields.read(options)
    calls = calls_wanted(fields.tool_choice, fields.definitions, fields.parallel_tool_calls)
    return await _prepare(service, fields, fields.prompt(messages), calls)


async def prepare_score(
    service: Service, tokens: Tokens, start: int, options: ScoreOptions, prompt_name: str
) -> Job:
    """The job for the log-probabilities of all tokens after the first `start`, without a reply."""
    given = {name: options.get(name) for name in _CACHE}
    scoring = {**given, "max_tokens": 0, "prompt_logprobs": 0, "prompt_logprobs_start": start}
    prompt = draft.Prompt(param=prompt_name, items=[array("i", tokens).tolist()])
    return await _prepare(service, EngineFields.read(scoring), prompt)


async def tokenize(
    service: Service, prompt: str | Sequence[Message], options: TokenizeOptions, max_tokens: int = 0
) -> Tokens:
    """The tokens of a text or a conversation; at most `max_tokens`, else raises `RequestError`."""
    if isinstance(prompt, str):
        return await prepare.tokenize(service, _read_prompt(prompt, "prompt"), None, Caller(), "", max_tokens)
    fields = EngineFields.read(options)
    return await prepare.tokenize(service, fields.prompt(prompt), fields.cache_salt, Caller(), "", max_tokens)


async def embed(
    service: Service,
    items: Sequence[Prompt],
    is_list: bool,
    dimensions: int | None,
    truncate: int | None,
) -> list[list[float]]:
    """The embeddings of the items of the argument `input`. Raises `RequestError`."""
    _, pooling = pooled.check_pooling(service)
    check_range("dimensions", dimensions, 1, pooling.size)
    names = pooled.name_inputs("input", len(items), is_list)
    inputs = [read_input(item, name) for item, name in zip(items, names, strict=True)]
    drafted = pooled.PoolingDraft(inputs=inputs, names=names, truncate=truncate)
    job = await pooled.prepare_pooling(service, prepare.new_id("engine"), drafted, Caller())
    vectors = (await pooled.pool(job)).vectors
    found: list[list[float]] = pooled.shorten_vectors(vectors, dimensions, pooling.is_normalized).tolist()
    return found


def read_input(item: Prompt, name: str) -> pooled.Input:
    (read,) = _read_prompt(item, name).items
    return read


async def _prepare(
    service: Service, fields: EngineFields, prompt: draft.Prompt, calls: CallsWanted = draft.NO_CALLS
) -> Job:
    drafted = draft.Draft(
        fields=fields,
        prompt=prompt,
        limits=draft.Limits(fields.max_tokens, "max_tokens"),
        is_chat=prompt.conversation is not None,
        calls=calls,
        constraint=fields.constraint(),
        logprobs=fields.logprobs,
        prompt_logprobs=fields.prompt_logprobs,
        model=fields.model,
    )
    return await prepare.prepare(service, prepare.new_id("engine"), drafted, Caller())


def _read_prompt(prompt: Prompt, name: str) -> draft.Prompt:
    if not isinstance(prompt, str):
        return draft.Prompt(param=name, items=[_read_token_ids(prompt, name)])
    check_characters(name, prompt)
    return draft.Prompt(param=name, items=[prompt], special=True)


def _read_token_ids(prompt: Sequence[int], name: str) -> list[int]:
    try:
        return [operator.index(token) for token in prompt]
    except TypeError:
        raise invalid_field(
            name,
            f"is {reprlib.repr(prompt)}, but must be a text, a list of token ids, or a list of such",
            "invalid_type",
        ) from None
