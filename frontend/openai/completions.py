"""POST /v1/completions."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from starlette.requests import Request

from ...runtime.errors import RequestError
from ...runtime.messages import Generate, GrammarSpec, ModelReady
from ...runtime.sampling_params import SamplingParams
from ..caller import Caller, caller_of
from ..generation import Generation
from ..service import Service, room_for_reply
from ..tenants import cache_scope, tenant_of
from .chunks import ChunkWriter
from .completion_answers import CompletionContext, CompletionStream, CompletionWhole, Prompt
from .constraint import constraint, enforced_as_asked
from .protocol import CompletionRequest
from .reply import ChoiceReply, Reply
from .requests import choice_reply, generate_messages, namespace_of, new_id
from .validation import (
    MAX_LOGPROBS,
    check_choices,
    check_common,
    check_range,
    check_token_ids,
    sampling_params,
    stop_strings,
)

DEFAULT_MAX_TOKENS = 16

_decoder = msgspec.json.Decoder(CompletionRequest)


@dataclass(frozen=True)
class CompletionJob:
    """A completion request that has been checked and tokenized."""

    service: Service
    request: CompletionRequest
    context: CompletionContext
    requests: Sequence[Generate]
    stop: Sequence[str]

    @property
    def request_id(self) -> str:
        return self.context.request_id

    @property
    def streams(self) -> bool:
        return bool(self.request.stream)

    def answer(self, generation: Generation) -> CompletionStream | CompletionWhole:
        choices = [self._choice_reply() for _ in self.requests]
        reply = Reply(choices, generation, self.context.choices)
        if self.streams:
            return CompletionStream(self.context, reply, self._writer())
        return CompletionWhole(self.context, reply)

    def _choice_reply(self) -> ChoiceReply:
        return choice_reply(self.service, self.request, self.stop, continues_text=True)

    def _writer(self) -> ChunkWriter:
        return ChunkWriter(
            kind="text_completion",
            request_id=self.context.request_id,
            created=self.context.created,
            model=self.context.model,
            fingerprint=self.context.fingerprint,
            options=self.request.stream_options,
        )


async def prepare_completion(service: Service, http_request: Request) -> CompletionJob:
    """Raises `RequestError` for what can't be served."""
    caller = caller_of(http_request, service.config)
    request = await service.bodies.read(http_request, caller, _decoder, CompletionRequest)
    service.check_model(request.model)
    model = service.engine.check_serving()
    asked = await service.work.call(caller, _asked, service, request, model)
    prompts = [await _prompt(service, item, request, caller, model) for item in asked.items]
    context = CompletionContext(
        request_id=new_id("cmpl"),
        created=int(time.time()),
        model=service.config.served_model_name,
        fingerprint=service.fingerprint,
        tokenizer=service.tokenizer,
        prompts=prompts,
        choices=request.n or 1,
        echo=bool(request.echo),
        wants_logprobs=request.logprobs is not None,
        wants_prompt_logprobs=request.prompt_logprobs is not None,
    )
    most_tokens = _most_tokens(request, prompts, model)
    requests = generate_messages(
        request,
        request_id=context.request_id,
        client=service.engine.client,
        namespace=namespace_of(request, cache_scope(http_request, service.config)),
        prompts=[prompt.tokens for prompt in prompts],
        sampling=_sampling(request, min(most_tokens), model),
        most_tokens=most_tokens,
        grammar=asked.grammar,
        tenant=tenant_of(http_request, request.user, service.config),
    )
    return CompletionJob(service, request, context, requests, asked.stop)


class _Asked(NamedTuple):
    """What a checked request asks for. `items` are its prompts."""

    items: Sequence[str | list[int]]
    grammar: GrammarSpec | None
    stop: Sequence[str]


def _asked(service: Service, request: CompletionRequest, model: ModelReady) -> _Asked:
    """Raises `RequestError` for what can't be served."""
    _check(request)
    stop = stop_strings(request)
    items = _items(request, service.config.max_waiting)
    for item in items:
        if not isinstance(item, str):
            check_token_ids("prompt", item, model.vocab_size)
    return _Asked(items, enforced_as_asked(constraint(request), request, service.config.unenforced), stop)


def _check(request: CompletionRequest) -> None:
    check_common(request)
    check_range("max_tokens", request.max_tokens, 0, None)
    check_range("logprobs", request.logprobs, 0, MAX_LOGPROBS)


def _most_tokens(request: CompletionRequest, prompts: Sequence[Prompt], model: ModelReady) -> list[int]:
    """Of the replies to each prompt."""
    wanted = request.max_tokens
    if wanted is None:
        wanted = min(DEFAULT_MAX_TOKENS, model.max_model_len)
    return [
        room_for_reply(model, len(prompt.tokens) // 4, wanted, "max_tokens", "prompt") for prompt in prompts
    ]


def _sampling(request: CompletionRequest, most_tokens: int, model: ModelReady) -> SamplingParams:
    prompt_logprobs = request.prompt_logprobs
    if request.echo and request.logprobs is not None:
        prompt_logprobs = max(request.logprobs, prompt_logprobs or 0)
    return sampling_params(
        request,
        max_tokens=most_tokens,
        logprobs=request.logprobs,
        prompt_logprobs=prompt_logprobs,
        vocab_size=model.vocab_size,
    )


def _items(request: CompletionRequest, max_waiting: int) -> Sequence[str | list[int]]:
    """A text, a list of ids, or a list of either. Raises `RequestError`."""
    given = request.prompt
    items: Sequence[str | list[int]]
    if isinstance(given, str):
        items = [given]
    elif given and all(isinstance(item, int) for item in given):
        items = [given]  # type: ignore[list-item]
    elif any(isinstance(item, int) for item in given):
        raise _prompt_error("prompt mixes token ids with texts or lists; give one kind.", "invalid_type")
    else:
        items = given  # type: ignore[assignment]
    if not items:
        raise _prompt_error("prompt must not be empty: it has no texts and no tokens.", "invalid_value")
    check_choices(len(items), request.n or 1, max_waiting)
    return items


async def _prompt(
    service: Service, item: str | list[int], request: CompletionRequest, caller: Caller, model: ModelReady
) -> Prompt:
    if isinstance(item, str):
        special = request.add_special_tokens is not False
        prompt = Prompt(await service.encode(item, special, caller, model.max_model_len, "prompt"), item)
    else:
        prompt = Prompt(array("i", item).tobytes(), None)
    if not prompt.tokens:
        raise _prompt_error("prompt must not be empty: it has no tokens.", "invalid_value")
    return prompt


def _prompt_error(message: str, code: str) -> RequestError:
    return RequestError(message, param="prompt", code=code)
