"""The methods of `Engine`. Each checks its arguments and returns the work for the engine's thread."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Coroutine, Sequence
from typing import Any, TypeAlias, TypeGuard, TypeVar, Unpack, cast, overload

from ...runtime.errors import RequestError
from ...runtime.messages import ModelReady
from ..core import adapters, leases
from ..core.prepare import Job, cache_namespace
from ..core.service import Service
from ..core.validation import invalid_field
from ..launch.progress import progress_bar
from . import requests
from .completion import Completion, Score
from .fields import Message
from .local_server import EngineRequest, LocalServer
from .requests import Prompt, Prompts, prepare_chat, prepare_completion, prepare_score
from .sampling import (
    ChatOptions,
    Sampling,
    ScoreOptions,
    TokenizeOptions,
    check_names,
    merge,
    merge_each,
)
from .scores import scored_prompts
from .thread import Work

T = TypeVar("T")
Conversation: TypeAlias = Sequence[Message]
Conversations: TypeAlias = Sequence[Sequence[Message]]


@overload
def generate(
    prompt: Prompt,
    sampling_params: Sampling | None = None,
    *,
    use_tqdm: bool = False,
    **sampling: Unpack[Sampling],
) -> Work[Completion]: ...
@overload
def generate(
    prompt: Prompts,
    sampling_params: Sampling | Sequence[Sampling] | None = None,
    *,
    use_tqdm: bool = False,
    **sampling: Unpack[Sampling],
) -> Work[list[Completion]]: ...
def generate(
    prompt: Prompt | Prompts,
    sampling_params: Sampling | Sequence[Sampling] | None = None,
    *,
    use_tqdm: bool = False,
    **sampling: Unpack[Sampling],
) -> Work[Completion] | Work[list[Completion]]:
    """The completion of a prompt, or a list of completions for a list of prompts, in its order."""
    if not _is_batch(prompt):
        (merged,) = merge_each(sampling_params, sampling, 1, "prompt")
        return _complete_one(_build_completion(cast(Prompt, prompt), merged))
    prompts = cast(list[Prompt], prompt)
    pairs = zip(prompts, merge_each(sampling_params, sampling, len(prompts), "prompts"), strict=True)
    built = [_build_completion(*pair, f"prompt[{place}]") for place, pair in enumerate(pairs)]
    return _complete_several(built, use_tqdm)


def stream(
    prompt: Prompt, sampling_params: Sampling | None = None, **sampling: Unpack[Sampling]
) -> EngineRequest:
    """The completion of a prompt in parts, as they arrive."""
    merged = merge(sampling_params, sampling)
    _check_streamable(merged)
    return _build_completion(prompt, merged)


@overload
def chat(
    messages: Conversation,
    sampling_params: Sampling | None = None,
    *,
    use_tqdm: bool = False,
    **options: Unpack[ChatOptions],
) -> Work[Completion]: ...
@overload
def chat(
    messages: Conversations,
    sampling_params: Sampling | Sequence[Sampling] | None = None,
    *,
    use_tqdm: bool = False,
    **options: Unpack[ChatOptions],
) -> Work[list[Completion]]: ...
def chat(
    messages: Conversation | Conversations,
    sampling_params: Sampling | Sequence[Sampling] | None = None,
    *,
    use_tqdm: bool = False,
    **options: Unpack[ChatOptions],
) -> Work[Completion] | Work[list[Completion]]:
    """The reply to a conversation, or a list of replies for a list of conversations, in its order."""
    if not _is_conversations(messages):
        (merged,) = merge_each(sampling_params, options, 1, "conversation")
        return _complete_one(_build_chat(cast(Conversation, messages), merged))
    pairs = zip(messages, merge_each(sampling_params, options, len(messages), "conversations"), strict=True)
    return _complete_several([_build_chat(*pair, place) for place, pair in enumerate(pairs)], use_tqdm)


def stream_chat(
    messages: Conversation, sampling_params: Sampling | None = None, **options: Unpack[ChatOptions]
) -> EngineRequest:
    """The reply to a conversation in parts, as they arrive."""
    merged = merge(sampling_params, options)
    _check_streamable(merged)
    return _build_chat(messages, merged)


def tokenize(prompt: str | Conversation, **options: Unpack[TokenizeOptions]) -> Work[list[int]]:
    """The tokens of a text or a conversation, as `generate` and `chat` compute them."""
    check_names(options, TokenizeOptions)

    async def work(service: Service, model: ModelReady) -> list[int]:
        return array("i", await requests.tokenize(service, prompt, options)).tolist()

    return lambda server: server.call(work)


def score(
    prompt: str | Conversation, choices: Sequence[str], **options: Unpack[ScoreOptions]
) -> Work[list[Score]]:
    """How likely each choice is after a text or as the beginning of the reply to a conversation.

    If the conversation ends with an assistant's message, the choices continue it. Scored are the tokens
    after the longest prefix that the prompt alone and the prompt with each choice have in common.
    """
    check_names(options, ScoreOptions)

    async def work(server: LocalServer) -> list[Score]:
        scored = await server.call(
            lambda service, model: scored_prompts(service, model, prompt, choices, options)
        )

        def request(tokens: bytes) -> EngineRequest:
            return EngineRequest(
                lambda service: prepare_score(service, tokens, scored.start, options, scored.prompt_name)
            )

        replies = await _gather([server.complete(request(tokens)) for tokens in scored.prompts], False)
        return [reply.score() for reply in replies]

    return work


@overload
def embed(
    input: Prompt, *, dimensions: int | None = None, truncate_prompt_tokens: int | None = None
) -> Work[list[float]]: ...
@overload
def embed(
    input: Prompts, *, dimensions: int | None = None, truncate_prompt_tokens: int | None = None
) -> Work[list[list[float]]]: ...
def embed(
    input: Prompt | Prompts, *, dimensions: int | None = None, truncate_prompt_tokens: int | None = None
) -> Work[list[float]] | Work[list[list[float]]]:
    """The embedding of a text or a list of token ids, or a list of embeddings for a list of such.

    `dimensions` keeps only the first numbers, again with the length 1. `truncate_prompt_tokens` cuts longer
    inputs to this number of tokens, with -1 to the model's context; without it they are refused.
    """
    is_list = _is_batch(input)
    items = cast(list[Prompt], input) if is_list else [cast(Prompt, input)]

    async def work(service: Service, model: ModelReady) -> list[list[float]]:
        return await requests.embed(service, items, is_list, dimensions, truncate_prompt_tokens)

    if is_list:
        return lambda server: server.call(work)

    async def first(server: LocalServer) -> list[float]:
        return (await server.call(work))[0]

    return first


def end_lease(key: str, cache_salt: str | None = None) -> Work[None]:
    """Ends the leases that requests took with `cache_lease` under `key`."""

    async def work(service: Service, model: ModelReady) -> None:
        leases.end_lease(service.engine, cache_namespace("", cache_salt), "", key)

    return lambda server: server.call(work)


def load_adapter(name: str, path: str, *, replace: bool = False) -> Work[None]:
    """Loads the LoRA adapter in a directory, as PEFT saves it, for requests with `model=name`. `replace`:
    also if the name belongs to another adapter, which requests that run still use."""

    async def work(service: Service, model: ModelReady) -> None:
        await adapters.load_adapter(service, name, path, replaces=replace)

    return lambda server: server.call(work)


def unload_adapter(name: str) -> Work[None]:
    """Takes an adapter from new requests; those that run still use it."""

    async def work(service: Service, model: ModelReady) -> None:
        await adapters.unload_adapter(service, name)

    return lambda server: server.call(work)


def _build_completion(prompt: Prompt, sampling: Sampling, name: str = "prompt") -> EngineRequest:
    check_names(sampling, Sampling)
    return EngineRequest(
        lambda service: prepare_completion(service, prompt, sampling, name),
        _count_choices(sampling),
        sampling.get("json_schema"),
    )


def _build_chat(messages: Conversation, options: ChatOptions, place: int | None = None) -> EngineRequest:
    """The request of a conversation. `place` is its number in a list of conversations."""
    check_names(options, ChatOptions)

    async def prepare(service: Service) -> Job:
        try:
            return await prepare_chat(service, messages, options)
        except RequestError as error:
            if place is None:
                raise
            param = f"messages[{place}]"
            raise RequestError(
                f"In {param}: {error}", status=error.status, param=param, code=error.code
            ) from error

    return EngineRequest(prepare, _count_choices(options), options.get("json_schema"))


def _check_streamable(options: Sampling | ChatOptions) -> None:
    """Raises `RequestError` for an option that streams don't have."""
    if options.get("prompt_logprobs") is not None:
        raise invalid_field("prompt_logprobs", "is not available in streams: call `generate` or `chat`")


def _count_choices(options: Sampling | ChatOptions) -> int:
    n: object = options.get("n")
    return n if isinstance(n, int) and n > 0 else 1  # other values are refused when the request is prepared


def _complete_one(request: EngineRequest) -> Work[Completion]:
    return lambda server: _complete(server, request)


def _complete_several(requests: Sequence[EngineRequest], use_tqdm: bool) -> Work[list[Completion]]:
    return lambda server: _gather([_complete(server, request) for request in requests], use_tqdm)


async def _complete(server: LocalServer, request: EngineRequest) -> Completion:
    return (await server.complete(request)).closing(request.json_schema)


async def _gather(works: Sequence[Coroutine[Any, Any, T]], use_tqdm: bool) -> list[T]:
    """The results in order. If one raises, the others are cancelled."""
    running = [asyncio.ensure_future(work) for work in works]
    try:
        with progress_bar(len(running), use_tqdm) as advance:
            for task in running:
                task.add_done_callback(lambda _: advance())
            return await asyncio.gather(*running)
    finally:
        for task in running:
            task.cancel()


def _is_batch(prompt: Prompt | Prompts) -> TypeGuard[Prompts]:
    return isinstance(prompt, list) and not (prompt and hasattr(prompt[0], "__index__"))


def _is_conversations(messages: Conversation | Conversations) -> TypeGuard[Conversations]:
    return isinstance(messages, list) and bool(messages) and isinstance(messages[0], list | tuple)
