"""Turns a draft into messages to the scheduler, and makes the readers of its replies."""

from __future__ import annotations

import secrets
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import NamedTuple

import msgspec

from ...runtime.errors import RequestError
from ...runtime.messages import (
    ADAPTER_MARK,
    Adapter,
    Generate,
    GrammarSpec,
    LeaseTerms,
    LeftOutKeyword,
    ModelReady,
    Tokens,
)
from .cache_misses.outline import NO_OUTLINE, Outline
from .constraint import after_reasoning, enforced_as_asked
from .conversation import render, render_beginning
from .draft import Draft, Limits, Prompt
from .fields import SamplingFields
from .leases import Breakpoint, Position, breakpoint_leases, session_lease, tool_pause_lease
from .replica.generation import Generation
from .reply import ChoiceReply, Reply
from .requested_tools import ToolUse, tool_use
from .service import Service
from .text.detokenizer import Detokenizer
from .text.long_texts import TooLongError, is_long
from .text.reasoning import ReasoningFormat
from .text.tokenized_text import common_length
from .tools.reply_parser import ReplyParser
from .validation import (
    check_choices,
    check_prompt_logprobs_start,
    check_salt,
    check_token_ids,
    choice_seed,
    invalid_field,
    sampling_params,
    shorten,
    stop_strings,
    tokens_in_words,
    too_long,
)
from .work.caller import Caller
from .work.thread_pool import run_now

MAX_COUNTED_TOKENS = 1 << 20
"""Maximum tokens of a prompt that is only tokenized. A longer context of the model raises it."""


class RenderedPrompt(NamedTuple):
    """The text of a conversation, empty for a prompt without one."""

    text: str = ""
    outline: Outline = NO_OUTLINE
    breakpoints: Sequence[Breakpoint] = ()


@dataclass(frozen=True)
class Job:
    """A request that is ready for the scheduler.

    `requests` has `n` choices of each prompt in turn. `positions` are those of the prompt's breakpoints.
    `reasoning` is None if replies have none. `created` is in seconds since 1970.
    """

    id: str
    service: Service
    draft: Draft
    prompts: Sequence[Tokens]
    rendered: RenderedPrompt
    positions: Sequence[Position]
    use: ToolUse
    reasoning: ReasoningFormat | None
    requests: Sequence[Generate]
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def model(self) -> str:
        """The name of the model or adapter, as the answer shows it."""
        name, config = self.draft.model, self.service.config
        return name if name and name not in config.model_names else config.served_model_name

    @property
    def choices(self) -> int:
        """The choices of each prompt."""
        return self.draft.fields.n or 1

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens of all prompts together."""
        return sum(len(prompt) // 4 for prompt in self.prompts)

    def new_reply(self, generation: Generation) -> Reply:
        """A new, empty reply for one attempt at the request."""
        choices = [self._choice_reply(request, generation.left_out) for request in self.requests]
        is_cached = self.service.config.prefix_cache and self.requests[0].namespace is not None
        return Reply(choices, generation, self.choices, is_cached=is_cached)

    def _choice_reply(self, request: Generate, left_out: Sequence[LeftOutKeyword]) -> ChoiceReply:
        service, draft = self.service, self.draft
        conversation = draft.prompt.conversation
        include_stop = bool(draft.fields.include_stop_str_in_output)
        detokenizer = Detokenizer(
            service.tokenizer,
            stop_strings(draft.fields),
            include_stop,
            draft.fields.skip_special_tokens is not False,
            continues_text=not draft.is_chat or conversation is None or conversation.continues_last,
            shown_special=_shown_special(service, self.use) if draft.is_chat else frozenset(),
            min_tokens=draft.fields.min_tokens or 0,
        )
        if not draft.is_chat:
            return ChoiceReply(detokenizer, include_stop, service.tokenizer.eos_tokens)
        text, format = self.rendered.text, self.reasoning
        allowed = (draft.fields.unenforced or service.config.unenforced) == "allow"
        tools = self.use.make_reading(left_out, allowed=allowed)
        starts_inside = format is not None and format.open_at_end_of(text)
        return ChoiceReply(
            detokenizer,
            include_stop,
            service.tokenizer.eos_tokens,
            parser=ReplyParser(format, tools, starts_inside=starts_inside) if format or tools else None,
            # The memo doesn't keep the ids of a prompt with the tokenizer's own special tokens.
            remember=None
            if draft.prompt.special
            else partial(service.remember, request.namespace, text, request.prompt),
        )


def new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(16)}"


def cache_namespace(scope: str, salt: str | None, adapter: Adapter | None = None) -> str:
    """The namespace's name. Disks and other servers see it, so it must not reveal the salt. It has the digest
    of the adapter's weights: another adapter of the same name shares no pages with it."""
    salted = scope + (sha256(salt.encode()).hexdigest() if salt else "")
    return salted if adapter is None else f"{salted}{ADAPTER_MARK}{adapter.digest}"


def is_shared_by_keys(namespace: str) -> bool:
    """Whether all API keys use the namespace, as it belongs neither to a key nor to a salt."""
    return not namespace.partition(ADAPTER_MARK)[0]


def namespace_of(fields: SamplingFields, scope: str, adapter: Adapter | None = None) -> str | None:
    """The namespace in which the prompt is looked up and cached; None for a request without the cache."""
    return None if fields.cache_prompt is False else cache_namespace(scope, fields.cache_salt, adapter)


async def prepare(
    service: Service, id: str, draft: Draft, caller: Caller, scope: str = "", tenant: str = ""
) -> Job:
    """Renders and tokenizes the prompts, and makes one `Generate` for each choice.

    The names of the caller's namespaces begin with `scope`. Choice i of every prompt samples with the seed
    plus i. Raises `RequestError` for a request that the model can't serve.
    """
    model, fields = service.engine.check_serving(), draft.fields
    if model.pooling is not None:
        raise RequestError(
            "The model makes embeddings, scores or classes and generates no text: use /v1/embeddings, "
            "/v1/score, /v1/rerank or /v1/classify, or a server with a generating model.",
            code="unsupported_task",
        )
    check_choices(draft.prompt.param, len(draft.prompt.items) or 1, fields.n or 1, service.config.max_waiting)
    use, grammar, rendered = await service.work.call(caller, _render, service, draft)
    adapter = service.find_adapter(draft.model)
    namespace = namespace_of(fields, scope, adapter)
    prompts = await _tokenize(service, draft.prompt, rendered.text, namespace, caller, model.max_model_len)
    if not all(prompts):
        raise invalid_field(draft.prompt.param, "must not be empty: it has no tokens")
    places = await _find_positions(service, rendered, prompts[0], namespace, caller)
    reasoning = service.reasoning if draft.is_chat else None
    if grammar is not None and reasoning is not None:
        reasoned = after_reasoning(grammar, reasoning, rendered.text, calls=use.mode != "none")
        if reasoned is None and use.mode != "allowed":
            reasoning = None
        grammar = reasoned or grammar
    leases = [] if namespace is None else _leases(draft, use, places)
    prediction = await _tokenize_prediction(service, draft.prediction, caller, model.max_model_len)
    requests = _generates(
        service, model, id, draft, prompts, grammar, namespace, tenant, leases, adapter, prediction
    )
    return Job(id, service, draft, prompts, rendered, places, use, reasoning, requests)


async def tokenize(
    service: Service,
    prompt: Prompt,
    salt: str | None,
    caller: Caller,
    scope: str = "",
    max_tokens: int = 0,
    model: str | None = None,
) -> Tokens:
    """The tokens of a prompt without a reply, at most `max_tokens`. The default is `MAX_COUNTED_TOKENS`, or
    the model's context if that is longer. Raises `RequestError`."""
    check_salt(salt)
    namespace = cache_namespace(scope, salt, service.find_adapter(model))
    ready = service.engine.model or service.engine.check_serving()
    max_tokens = max_tokens or max(MAX_COUNTED_TOKENS, ready.max_model_len)
    rendered = await service.work.call(caller, render_prompt, service, prompt)
    (tokens,) = await _tokenize(service, prompt, rendered.text, namespace, caller, max_tokens)
    return tokens


def render_prompt(service: Service, prompt: Prompt) -> RenderedPrompt:
    """Renders a conversation. Raises `RequestError` if the template or this server can't render it."""
    if prompt.conversation is None:
        return RenderedPrompt()
    try:
        text, outline, form = render(service.template, prompt.conversation, prompt.tools)
    except RequestError as error:
        if prompt.param == "messages" or not (error.param or "").startswith("messages"):
            raise
        raise RequestError(error.message, param=prompt.param, code=error.code) from None
    breakpoints = []
    for conversation, tools, ttl_s in prompt.beginnings:
        beginning = render_beginning(service.template, conversation, tools, form)
        if beginning is not None:
            breakpoints.append(Breakpoint(beginning, ttl_s))
    return RenderedPrompt(text, outline, breakpoints)


def _render(service: Service, draft: Draft) -> tuple[ToolUse, GrammarSpec | None, RenderedPrompt]:
    answer = service.reasoning.answer if service.reasoning is not None else ""
    use = tool_use(draft.calls, service.tool_format, draft.constraint, answer)
    grammar = enforced_as_asked(use.grammar or draft.constraint, draft.fields, service.config)
    return use, grammar, render_prompt(service, draft.prompt)


async def _tokenize(
    service: Service, prompt: Prompt, text: str, namespace: str | None, caller: Caller, max_tokens: int
) -> list[Tokens]:
    """The tokens of each prompt, at most `max_tokens`. `text` is the rendered conversation, if there is
    one."""
    param, special = prompt.param, prompt.special
    if prompt.conversation is not None:
        return [await _encode(service, text, special, namespace, caller, max_tokens, param)]
    return [
        await _encode(service, item, special, None, caller, max_tokens, param)
        if isinstance(item, str)
        else _pack_ids(service, item, param)
        for item in prompt.items
    ]


async def _tokenize_prediction(service: Service, text: str, caller: Caller, max_tokens: int) -> Tokens:
    """The tokens of what a client expects of its reply; none if no tokens are drafted."""
    if not text or not service.config.max_drafts:
        return b""
    return await _encode(service, text, False, None, caller, max_tokens, "prediction")


def _pack_ids(service: Service, ids: list[int], param: str) -> Tokens:
    model = service.engine.model
    if model is not None:
        check_token_ids(param, ids, model.vocab_size)
    return array("i", ids).tobytes()


async def _encode(
    service: Service,
    text: str,
    special: bool,
    namespace: str | None,
    caller: Caller,
    max_tokens: int,
    param: str,
) -> Tokens:
    """The ids of a text, with the tokenizer's own special tokens around it if `special`. Without special
    tokens, earlier replies in the namespace keep the ids that they were sampled with. A long text is
    tokenized in steps on another thread.

    Raises `RequestError` naming `param` for more than `max_tokens`, or for a token that the model does not
    have.
    """
    model = service.engine.model
    steps = service.memo.encode_in_steps(namespace, text, max_tokens, special=special)
    try:
        tokens = await service.work.run(caller, steps) if is_long(text) else run_now(steps)
    except TooLongError as error:
        is_context = model is not None and model.max_model_len == max_tokens
        limit = "this model's maximum context length is" if is_context else "may have at most"
        problem = f"{param} has at least {error.tokens} tokens, but {limit} {max_tokens}: {shorten(param)}."
        raise too_long(problem, param) from None
    if model is not None and service.tokenizer.vocab_size > model.vocab_size:
        check_token_ids(param, memoryview(tokens).cast("i"), model.vocab_size)
    return tokens


async def _find_positions(
    service: Service, rendered: RenderedPrompt, prompt: Tokens, namespace: str | None, caller: Caller
) -> list[Position]:
    """The breakpoints' positions in the prompt: each at the end of the tokens shared with a rendered text."""
    found, text = [], rendered.text.encode()
    for each in rendered.breakpoints if namespace is not None else ():
        shared = text[: common_length(text, each.text.encode())].decode(errors="ignore")
        tokens = await _encode(service, shared, False, namespace, caller, len(prompt) // 4 + 1, "messages")
        found.append(Position(common_length(prompt, tokens) // 4, each.ttl_s))
    return found


def _generates(
    service: Service,
    model: ModelReady,
    id: str,
    draft: Draft,
    prompts: Sequence[Tokens],
    grammar: GrammarSpec | None,
    namespace: str | None,
    tenant: str,
    leases: list[LeaseTerms],
    adapter: Adapter | None,
    prediction: Tokens,
) -> list[Generate]:
    fields, choices = draft.fields, draft.fields.n or 1
    shortest = min(len(prompt) // 4 for prompt in prompts)
    check_prompt_logprobs_start(fields.prompt_logprobs_start, draft.prompt_logprobs, shortest)
    max_lengths = [
        reply_tokens(model, len(prompt) // 4, draft.limits, draft.prompt.param) for prompt in prompts
    ]
    sampling = sampling_params(
        fields,
        max_tokens=min(max_lengths),
        logprobs=draft.logprobs,
        prompt_logprobs=draft.prompt_logprobs,
        vocab_size=model.vocab_size,
        defaults=model.sampling,
    )
    return [
        Generate(
            request=f"{id}-{number * choices + choice}",
            client=service.engine.client,
            prompt=prompt,
            sampling=msgspec.structs.replace(
                sampling, seed=choice_seed(sampling.seed, choice), max_tokens=max_lengths[number]
            ),
            grammar=grammar,
            namespace=namespace,
            priority=fields.priority or 0,
            tenant=tenant,
            leases=leases,
            adapter="" if adapter is None else adapter.digest,
            is_streamed=draft.streams,
            prediction=prediction,
        )
        for number, prompt in enumerate(prompts)
        for choice in range(choices)
    ]


def _leases(draft: Draft, use: ToolUse, places: Sequence[Position]) -> list[LeaseTerms]:
    found = [*breakpoint_leases(places), *draft.leases]
    if draft.fields.cache_lease is not None:
        # A request without a reply scores tokens from `prompt_logprobs_start` on; those before are leased.
        end = draft.fields.prompt_logprobs_start if draft.limits.max_tokens == 0 else None
        found.append(session_lease(draft.fields.cache_lease, end))
    if use.mode != "none":
        found.append(tool_pause_lease())
    return found


def reply_tokens(model: ModelReady, prompt_tokens: int, limits: Limits, prompt_param: str) -> int:
    """The maximum tokens of the reply: `max_tokens`, or the rest of the context if that is less.

    Raises `RequestError` if the prompt leaves nothing, or if `max_tokens` alone exceeds the context.
    """
    max_length, max_tokens = model.max_model_len, limits.max_tokens
    context = f"This model's maximum context length is {tokens_in_words(max_length)}"
    if limits.context is not None and limits.context < max_length:
        max_length = limits.context
        if prompt_tokens >= max_length:
            raise too_long(
                f"{limits.context_param} is {max_length}, but {prompt_param} has "
                f"{tokens_in_words(prompt_tokens)}, and the reply needs some too: raise "
                f"{limits.context_param}, or leave it out.",
                limits.context_param,
            )
    elif limits.context is None and max_tokens is not None and max_tokens > max_length:
        advice = f"lower it to {max_length} at most{'' if limits.is_required else ', or leave it out'}"
        raise too_long(f"{context}, but {limits.param} is {max_tokens}: {advice}.", limits.param)
    left = max_length - prompt_tokens
    if left < (0 if max_tokens == 0 else 1):
        problem = f"but the prompt has {prompt_tokens}, and the reply needs some too"
        raise too_long(f"{context}, {problem}: {shorten(prompt_param)}.", prompt_param)
    return left if max_tokens is None else min(left, max_tokens)


def _shown_special(service: Service, use: ToolUse) -> frozenset[int]:
    """The special tokens whose text the reply shows, because they mark reasoning or calls."""
    reasoning = service.reasoning.shown_special(service.tokenizer) if service.reasoning else frozenset[int]()
    return reasoning | use.shown_special(service.tokenizer)
