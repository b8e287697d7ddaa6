"""The calls of `Engine` as coroutines of its thread."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Coroutine, Sequence
from typing import Any, TypeAlias, TypeGuard, TypeVar, cast

from ...runtime.errors import RequestError
from ...runtime.messages import ModelReady
from ..core import leases
from ..core.prepare import Job, cache_namespace
from ..core.service import Service
from ..launch.progress import progress_bar
from .completion import Completion, Score
from .conversation import Message
from .local_server import EngineRequest, LocalServer
from .reply import EngineReply
from .requests import (
    Prompt,
    Prompts,
    prepare_chat,
    prepare_completion,
    prepare_score,
    tokenize,
)
from .sampling import (
    ChatOptions,
    Sampling,
    ScoreOptions,
    TokenizeOptions,
    check_names,
    repeat_for_each,
    take_only,
)
from .scores import scored_prompts
from .thread import Work

T = TypeVar("T")
Conversation: TypeAlias = Sequence[Message]
Conversations: TypeAlias = Sequence[Sequence[Message]]


def generate(
    prompt: Prompt | Prompts, sampling: Sampling | list[Sampling], use_tqdm: bool
) -> Work[Completion | list[Completion]]:
    if not _is_batch(prompt):
        return _complete_one(build_completion(cast(Prompt, prompt), take_only(sampling, "prompt")))
    prompts = cast(list[Prompt], prompt)
    pairs = zip(prompts, repeat_for_each(sampling, len(prompts), "prompts"), strict=True)
    requests = [build_completion(*pair, f"prompt[{place}]") for place, pair in enumerate(pairs)]
    return _complete_several(requests, use_tqdm)


def chat(
    messages: Conversation | Conversations, options: ChatOptions | list[ChatOptions], use_tqdm: bool
) -> Work[Completion | list[Completion]]:
    if not _is_conversations(messages):
        return _complete_one(build_chat(cast(Conversation, messages), take_only(options, "conversation")))
    pairs = zip(messages, repeat_for_each(options, len(messages), "conversations"), strict=True)
    return _complete_several([build_chat(*pair, place) for place, pair in enumerate(pairs)], use_tqdm)


def tokens(prompt: str | Conversation, options: TokenizeOptions) -> Work[list[int]]:
    check_names(options, TokenizeOptions)

    async def work(service: Service, model: ModelReady) -> list[int]:
        return array("i", await tokenize(service, prompt, options)).tolist()

    return lambda server: server.call(work)


def score(prompt: str | Conversation, choices: Sequence[str], options: ScoreOptions) -> Work[list[Score]]:
    check_names(options, ScoreOptions)

    async def work(server: LocalServer) -> list[Score]:
        scored = await server.call(
            lambda service, model: scored_prompts(service, model, prompt, choices, options)
        )

        def request(tokens: bytes) -> EngineRequest:
            return EngineRequest(
                lambda service, _: prepare_score(service, tokens, scored.start, options, scored.prompt_name)
            )

        requests = [request(tokens) for tokens in scored.prompts]
        return await _gather([server.complete(each, EngineReply.score) for each in requests], False)

    return work


def end_lease(key: str, cache_salt: str | None) -> Work[None]:
    async def work(service: Service, model: ModelReady) -> None:
        leases.end_lease(service.engine, cache_namespace("", cache_salt), "", key)

    return lambda server: server.call(work)


def build_completion(prompt: Prompt, sampling: Sampling, name: str = "prompt") -> EngineRequest:
    check_names(sampling, Sampling)
    return EngineRequest(
        lambda service, model: prepare_completion(service, prompt, sampling, name),
        _count_choices(sampling),
        sampling.get("json_schema"),
    )


def build_chat(messages: Conversation, options: ChatOptions, place: int | None = None) -> EngineRequest:
    """`place` is the conversation's among several."""
    check_names(options, ChatOptions)

    async def prepare(service: Service, model: ModelReady) -> Job:
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


def stream_completion(prompt: Prompt, sampling: Sampling) -> EngineRequest:
    request = build_completion(prompt, sampling)
    _check_streamable(sampling)
    return request


def stream_chat(messages: Conversation, options: ChatOptions) -> EngineRequest:
    request = build_chat(messages, options)
    _check_streamable(options)
    return request


def _check_streamable(options: Sampling | ChatOptions) -> None:
    """Raises `RequestError` for an option that streams don't have."""
    if options.get("prompt_logprobs") is not None:
        raise RequestError(
            "prompt_logprobs is not available in streams: call `generate` or `chat`.",
            param="prompt_logprobs",
            code="invalid_value",
        )


def _count_choices(options: Sampling | ChatOptions) -> int:
    n: object = options.get("n")
    return n if isinstance(n, int) and n > 0 else 1  # other values are refused when the request is prepared


def _complete_one(request: EngineRequest) -> Work[Completion]:
    return lambda server: _complete(server, request)


def _complete_several(requests: Sequence[EngineRequest], use_tqdm: bool) -> Work[list[Completion]]:
    return lambda server: _gather([_complete(server, request) for request in requests], use_tqdm)


def _complete(server: LocalServer, request: EngineRequest) -> Coroutine[Any, Any, Completion]:
    return server.complete(request, lambda reply: reply.closing(request.json_schema))


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
