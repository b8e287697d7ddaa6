"""Requests to a model that pools: inputs become tokens, and come back from the scheduler as vectors."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...runtime.api_keys import Allowances
from ...runtime.errors import RequestError
from ...runtime.messages import Generate, ModelReady, Output, Pooling, Tokens
from ...runtime.sampling_params import SamplingParams
from .prepare import cache_namespace
from .replica.generation import Generation, early_end
from .reply import Usage
from .service import Service
from .text.tokenizer import EncodedInput
from .validation import check_salt, check_token_ids, invalid_field, tokens_in_words, too_long
from .work.caller import Caller
from .work.thread_pool import Steps, run_now

Input: TypeAlias = str | list[int] | tuple[str, str]
"""a text, its tokens, or a pair of texts"""
Vectors: TypeAlias = NDArray[np.float32]
"""[inputs, size]"""
MAX_INPUTS = 2048
SLICE_TOKENS = 2048
"""tokens of inputs that are sent together; about those of a step"""
SLICE_INPUTS = 128
OPEN_SLICES = 3
"""slices of a request that the scheduler has at a time, so that others' inputs wait for few"""
STEP_CHARACTERS = 1 << 16
"""characters that take about 20 ms to tokenize"""
_NO_TOKENS = SamplingParams(max_tokens=0, temperature=0.0)


@dataclass(frozen=True, kw_only=True)
class PoolingDraft:
    """The inputs of a request, which errors call `names`.

    `truncate`: inputs are cut to this number of tokens; -1: to the context; None: a longer one is an error.
    """

    inputs: Sequence[Input]
    names: Sequence[str]
    truncate: int | None = None
    truncate_param: str = "truncate_prompt_tokens"
    special: bool = True
    priority: int | None = None
    salt: str | None = None
    user: str | None = None


@dataclass(frozen=True)
class PoolingJob:
    """Inputs that are ready for the scheduler."""

    service: Service
    draft: PoolingDraft
    pooling: Pooling
    requests: Sequence[Generate]

    @property
    def prompt_tokens(self) -> int:
        return sum(len(request.prompt) // 4 for request in self.requests)


class PooledInputs(NamedTuple):
    vectors: Vectors
    usage: Usage
    allowances: Allowances | None = None
    """what the API key has left after this request"""


def check_pooling(service: Service) -> tuple[ModelReady, Pooling]:
    """Raises `RequestError` if the model generates text."""
    model = service.engine.check_serving()
    if model.pooling is None:
        raise RequestError(
            "The model generates text and is not served for embeddings: use an embedding model, or start the "
            "server with --runner pooling.",
            code="unsupported_task",
        )
    return model, model.pooling


def name_inputs(param: str, count: int, is_list: bool) -> list[str]:
    return [f"{param}[{at}]" for at in range(count)] if is_list else [param]


async def prepare_pooling(
    service: Service, id: str, draft: PoolingDraft, caller: Caller, scope: str = "", tenant: str = ""
) -> PoolingJob:
    """Tokenizes the inputs. The caller's namespaces begin with `scope`. Raises `RequestError`."""
    model, pooling = check_pooling(service)
    check_salt(draft.salt)
    steps = _encode(service, draft, model)
    is_long = sum(len(part) for each in draft.inputs for part in _parts(each)) > STEP_CHARACTERS // 8
    encoded = await service.work.run(caller, steps) if is_long else run_now(steps)
    requests = [
        Generate(
            request=f"{id}-{number}",
            client=service.engine.client,
            prompt=tokens,
            sampling=_NO_TOKENS,
            namespace=cache_namespace(scope, draft.salt) if pooling.reads_cache else None,
            priority=draft.priority or 0,
            tenant=tenant,
            is_streamed=False,
            second=second,
        )
        for number, (tokens, second) in enumerate(encoded)
    ]
    return PoolingJob(service, draft, pooling, requests)


def _parts(item: Input) -> Sequence[str | list[int]]:
    return item if isinstance(item, tuple) else (item,)


def _encode(service: Service, draft: PoolingDraft, model: ModelReady) -> Steps[list[EncodedInput]]:
    """Tokenizes many short texts together, and lets other work run between them."""
    limit = _find_limit(draft, model)
    found: list[EncodedInput] = []
    for start, end in _cut(draft.inputs):
        part = draft.inputs[start:end]
        texts = [each for each in part if not isinstance(each, list)]
        truncate = limit if draft.truncate is not None else None
        encoded = iter(service.tokenizer.encode_inputs(texts, model.max_model_len, truncate, draft.special))
        for item, name in zip(part, draft.names[start:end], strict=True):
            if isinstance(item, list):
                check_token_ids(name, item, model.vocab_size)
                kept = item if draft.truncate is None else item[:limit]
                one = EncodedInput(array("i", kept).tobytes(), 0)
            else:
                one = next(encoded)
            _check_length(one.tokens, name, draft, model)
            found.append(one)
        yield
    return found


def _find_limit(draft: PoolingDraft, model: ModelReady) -> int:
    limit, most = draft.truncate, model.max_model_len
    if limit is None or limit == -1:
        return most
    if not 1 <= limit <= most:
        raise invalid_field(
            draft.truncate_param, f"is {limit}, but must be -1 or between 1 and {most}, the model's context"
        )
    return limit


def _check_length(tokens: Tokens, name: str, draft: PoolingDraft, model: ModelReady) -> None:
    count = len(tokens) // 4
    if not count:
        raise invalid_field(name, "must not be empty: it has no tokens")
    if count > model.max_model_len:
        raise too_long(
            f"{name} has at least {tokens_in_words(count)}, but this model's maximum context length is "
            f"{model.max_model_len}: shorten it, or send {draft.truncate_param} to have it cut.",
            name,
        )


def _cut(inputs: Sequence[Input]) -> Iterator[tuple[int, int]]:
    """Ranges of inputs of about `STEP_CHARACTERS`."""
    start = characters = 0
    for at, item in enumerate(inputs):
        size = sum(map(len, _parts(item)))
        if at > start and characters + size > STEP_CHARACTERS:
            yield start, at
            start, characters = at, 0
        characters += size
    yield start, len(inputs)


async def pool(
    job: PoolingJob, watch: Callable[[int, Output], None] = lambda number, output: None
) -> PooledInputs:
    """Sends the inputs to the scheduler, a few slices at a time, and returns their vectors. `watch` gets the
    number of each input with its output. Raises `RequestError`."""
    outputs: list[Output | None] = [None] * len(job.requests)
    allowances: list[Allowances | None] = []
    slices = _cut_slices(job.requests, job.service.config.max_waiting)

    async def work() -> None:
        for start, end in slices:
            async with job.service.permits.hold(end - start, job.requests[start].tenant):
                found, left = await _compute(job.service, job.requests[start:end])
            allowances.append(left)
            for number, output in enumerate(found, start=start):
                outputs[number] = output
                watch(number, output)

    workers = [asyncio.ensure_future(work()) for _ in range(OPEN_SLICES)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*workers, return_exceptions=True)
    done = [output for output in outputs if output is not None]
    vectors = np.frombuffer(b"".join(output.vector or b"" for output in done), np.float32)
    usage = Usage(job.prompt_tokens, sum(output.cached_tokens or 0 for output in done), 0, 0)
    return PooledInputs(vectors.reshape(len(done), job.pooling.size), usage, _find_least(allowances))


def _find_least(found: Sequence[Allowances | None]) -> Allowances:
    """The least that is left of each limit, since slices may be accepted in any order."""
    known = [each for each in found if each is not None]
    requests = [each.requests for each in known if each.requests is not None]
    tokens = [each.tokens for each in known if each.tokens is not None]
    least = (min(kind, key=lambda each: each.left, default=None) for kind in (requests, tokens))
    return Allowances(*least)


def _cut_slices(requests: Sequence[Generate], max_waiting: int) -> Iterator[tuple[int, int]]:
    max_inputs = max(1, min(SLICE_INPUTS, max_waiting // OPEN_SLICES))
    start = tokens = 0
    for at, request in enumerate(requests):
        size = len(request.prompt) // 4
        if at > start and (tokens + size > SLICE_TOKENS or at - start == max_inputs):
            yield start, at
            start, tokens = at, 0
        tokens += size
    yield start, len(requests)


async def _compute(service: Service, requests: Sequence[Generate]) -> tuple[list[Output], Allowances | None]:
    generation = service.engine.start(requests)
    try:
        await generation.accepted()
        return await _read(generation), generation.allowances
    finally:
        service.engine.forget(generation)


async def _read(generation: Generation) -> list[Output]:
    """The output of each request. A restart of the replica begins anew."""
    attempt, found = generation.attempt, dict[int, Output]()
    while len(found) < len(generation.requests):
        arrivals = await generation.next()
        if generation.attempt != attempt:
            attempt, found = generation.attempt, {}
        for number, output, _ in arrivals:
            if output.vector is None:
                raise early_end(output)
            found[number] = output
    return [found[number] for number in range(len(found))]


def shorten_vectors(vectors: Vectors, dimensions: int | None, is_normalized: bool) -> Vectors:
    """The first `dimensions` numbers of each embedding, divided by their length if `is_normalized`."""
    kept = vectors[:, :dimensions]
    return normalize(kept) if is_normalized else kept


def normalize(vectors: Vectors) -> Vectors:
    lengths: Vectors = np.linalg.norm(vectors, axis=1, keepdims=True).astype(np.float32)
    normal: Vectors = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
    return normal


def activate(logits: Vectors, pooling: Pooling) -> Vectors:
    """The probabilities of classes."""
    shares: NDArray[Any] = logits
    if pooling.activation == "sigmoid":
        shares = 0.5 * (1 + np.tanh(logits / 2))
    elif pooling.activation == "softmax":
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares = powers / powers.sum(axis=1, keepdims=True)
    return shares.astype(np.float32)
