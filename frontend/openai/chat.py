"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from starlette.requests import Request

from ...runtime.errors import RequestError
from ...runtime.messages import Generate, GrammarSpec, LeftOut, ModelReady, Tokens
from ...runtime.sampling_params import SamplingParams
from ..caller import caller_of
from ..generation import Generation
from ..service import Service, room_for_reply
from ..tenants import cache_scope, tenant_of
from ..text.reasoning import ReasoningParser
from .chat_answers import ChatContext, ChatStream, ChatWhole
from .chunks import ChunkWriter
from .constraint import behind_reasoning, constraint, enforced_as_asked
from .conversation import render, tool_definitions
from .message_parser import MessageParser
from .protocol import ChatRequest
from .reply import ChoiceReply, Reply
from .requests import choice_reply, generate_messages, namespace_of, new_id
from .tool_use import ToolUse, tool_use
from .validation import (
    MAX_LOGPROBS,
    check_choices,
    check_common,
    check_range,
    check_word,
    sampling_params,
    stop_strings,
)

REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

_decoder = msgspec.json.Decoder(ChatRequest)


@dataclass(frozen=True)
class ChatJob:
    """A chat request that has been checked, rendered and tokenized."""

    service: Service
    request: ChatRequest
    context: ChatContext
    requests: Sequence[Generate]
    stop: Sequence[str]
    shown_special: frozenset[int]

    @property
    def request_id(self) -> str:
        return self.context.request_id

    @property
    def streams(self) -> bool:
        return bool(self.request.stream)

    def answer(self, generation: Generation) -> ChatStream | ChatWhole:
        choices = [self._choice_reply() for _ in self.requests]
        reply = Reply(choices, generation, n=len(choices))
        if self.streams:
            return ChatStream(self.context, reply, self._writer())
        return ChatWhole(self.context, reply)

    def _choice_reply(self) -> ChoiceReply:
        return choice_reply(
            self.service,
            self.request,
            self.stop,
            continues_text=bool(self.request.continue_final_message),
            shown_special=self.shown_special,
        )

    def _writer(self) -> ChunkWriter:
        return ChunkWriter(
            kind="chat.completion.chunk",
            request_id=self.context.request_id,
            created=self.context.created,
            model=self.context.model,
            fingerprint=self.context.fingerprint,
            options=self.request.stream_options,
        )


async def prepare_chat(service: Service, http_request: Request) -> ChatJob:
    """Raises `RequestError` for what can't be served."""
    caller = caller_of(http_request, service.config)
    request = await service.bodies.read(http_request, caller, _decoder, ChatRequest)
    service.check_model(request.model)
    model = service.engine.check_serving()
    asked = await service.work.call(caller, _asked, service, request)
    use, text = asked.use, asked.text
    namespace = namespace_of(request, cache_scope(http_request, service.config))
    prompt = await service.encode_rendered(
        text, bool(request.add_special_tokens), namespace, caller, model.max_model_len, "messages"
    )
    reasoned = _behind_reasoning(service, asked.grammar, text, calls=use.mode != "none")
    reasons = asked.grammar is None or reasoned is not None or use.mode == "allowed"
    context = _context(service, request, namespace, text, prompt, use, reasons=reasons)
    sampling = _sampling(request, len(prompt) // 4, model)
    requests = generate_messages(
        request,
        request_id=context.request_id,
        client=service.engine.client,
        namespace=namespace,
        prompts=[prompt],
        sampling=sampling,
        most_tokens=[sampling.max_tokens],
        grammar=reasoned or asked.grammar,
        tenant=tenant_of(http_request, request.user, service.config),
    )
    return ChatJob(service, request, context, requests, asked.stop, _shown_special(service, use))


class _Asked(NamedTuple):
    """What a checked request asks for. `text` is the rendered prompt."""

    use: ToolUse
    grammar: GrammarSpec | None
    stop: Sequence[str]
    text: str


def _asked(service: Service, request: ChatRequest) -> _Asked:
    """Raises `RequestError` for what can't be served."""
    _check(request)
    check_choices(1, request.n or 1, service.config.max_waiting)
    stop = stop_strings(request)
    asked = constraint(request)
    tools = tool_definitions(request.tools)
    use = tool_use(request, tools, service.tool_format, asked)
    grammar = enforced_as_asked(use.grammar or asked, request, service.config.unenforced)
    return _Asked(use, grammar, stop, render(service.template, request, tools))


def _check(request: ChatRequest) -> None:
    check_common(request)
    check_range("max_tokens", request.max_tokens, 1, None)
    check_range("max_completion_tokens", request.max_completion_tokens, 1, None)
    check_range("top_logprobs", request.top_logprobs, 0, MAX_LOGPROBS)
    check_word("reasoning_effort", request.reasoning_effort, REASONING_EFFORTS)
    if request.top_logprobs and not request.logprobs:
        raise RequestError(
            f"top_logprobs is {request.top_logprobs}, but is only allowed when logprobs is true.",
            param="top_logprobs",
            code="invalid_value",
        )


def _sampling(request: ChatRequest, prompt_tokens: int, model: ModelReady) -> SamplingParams:
    """`max_completion_tokens` is the newer name of `max_tokens` and goes before it."""
    newer = request.max_completion_tokens is not None
    param = "max_completion_tokens" if newer else "max_tokens"
    wanted = request.max_completion_tokens if newer else request.max_tokens
    return sampling_params(
        request,
        max_tokens=room_for_reply(model, prompt_tokens, wanted, param, "messages"),
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=request.prompt_logprobs,
        vocab_size=model.vocab_size,
    )


def _shown_special(service: Service, use: ToolUse) -> frozenset[int]:
    reasoning = service.reasoning.shown_special(service.tokenizer) if service.reasoning else frozenset[int]()
    return reasoning | use.shown_special(service.tokenizer)


def _behind_reasoning(
    service: Service, grammar: GrammarSpec | None, prompt: str, *, calls: bool
) -> GrammarSpec | None:
    if grammar is None or service.reasoning is None:
        return None
    return behind_reasoning(grammar, service.reasoning, prompt, calls=calls)


def _context(
    service: Service,
    request: ChatRequest,
    namespace: str | None,
    text: str,
    prompt: Tokens,
    use: ToolUse,
    reasons: bool,
) -> ChatContext:
    """`reasons`: the reply has room for reasoning."""
    reasoning = service.reasoning if reasons else None
    allowed = (request.unenforced or service.config.unenforced) == "allow"

    def new_parser(left_out: Sequence[LeftOut]) -> MessageParser:
        inside = reasoning is not None and reasoning.open_at_end_of(text)
        thoughts = ReasoningParser(reasoning, inside) if reasoning is not None else None
        return MessageParser(thoughts, use.new_parser(left_out, allowed=allowed))

    return ChatContext(
        request_id=new_id("chatcmpl"),
        created=int(time.time()),
        model=service.config.served_model_name,
        fingerprint=service.fingerprint,
        tokenizer=service.tokenizer,
        memo=service.memo,
        namespace=namespace,
        prompt_text=text,
        prompt=prompt,
        new_parser=new_parser,
        call_finish_reason=use.finish_reason,
        wants_logprobs=bool(request.logprobs),
        wants_prompt_logprobs=request.prompt_logprobs is not None,
        counts_reasoning=reasoning is not None,
        shows_reasoning=request.include_reasoning is not False,
        reasoning_field=service.config.reasoning_field,
    )
