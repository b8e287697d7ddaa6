"""Turns a request's checked fields into messages to the scheduler, and makes the readers of its replies."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from ...runtime.messages import Generate, GrammarSpec, LeaseTerms, LeftOut, ModelReady, Tokens
from .cache_misses.outline import NO_OUTLINE, Outline
from .chat_reader import ChatReader
from .constraint import after_reasoning
from .fields import SamplingFields
from .leases import session_lease, tool_pause_lease
from .replica.generation import Generation
from .reply import ChoiceReply, Reply
from .requested_tools import ToolUse
from .service import Service
from .text.detokenizer import Detokenizer
from .text.reasoning import ReasoningFormat, ReasoningParser
from .validation import (
    check_prompt_logprobs_start,
    choice_seed,
    sampling_params,
    shorten,
    stop_strings,
    tokens_in_words,
    too_long,
)


@dataclass(frozen=True)
class Chat:
    """A rendered conversation and how its replies are read.

    `reasoning` is None if replies have none. `continues`: a reply continues the last message.
    """

    text: str
    namespace: str | None
    reasoning: ReasoningFormat | None
    use: ToolUse
    continues: bool = False


class Limits(msgspec.Struct, frozen=True):
    """`max_tokens` of a reply, and the names of the fields to mention in errors about it and the prompt."""

    max_tokens: int | None
    param: str
    prompt_param: str


@dataclass(frozen=True, kw_only=True)
class CheckedRequest:
    """A request whose fields are valid and whose prompts are tokenized.

    `logprobs` and `prompt_logprobs` are numbers of alternatives, None for none at all. `outline` has the
    parts of a prompt that was rendered from messages.
    """

    request_id: str
    fields: SamplingFields
    limits: Limits
    prompts: Sequence[Tokens]
    namespace: str | None
    tenant: str
    grammar: GrammarSpec | None
    logprobs: int | None
    prompt_logprobs: int | None
    chat: Chat | None = None
    outline: Outline = NO_OUTLINE
    leases: Sequence[LeaseTerms] = ()


@dataclass(frozen=True)
class PreparedRequest:
    """A request that has been checked and tokenized. `requests` has `n` choices of each prompt in turn."""

    service: Service
    fields: SamplingFields
    requests: Sequence[Generate]
    chat: Chat | None
    outline: Outline

    @property
    def prompt_tokens(self) -> int:
        """The sum over the prompts."""
        return sum(len(request.prompt) // 4 for request in self.requests[:: self.fields.n or 1])

    def new_reply(self, generation: Generation) -> Reply:
        """The reply of one attempt, without anything of an earlier attempt."""
        choices = [self._choice_reply(request, generation.left_out) for request in self.requests]
        is_cached = self.service.config.prefix_cache and self.requests[0].namespace is not None
        return Reply(choices, generation, self.fields.n or 1, is_cached=is_cached)

    def _choice_reply(self, request: Generate, left_out: Sequence[LeftOut]) -> ChoiceReply:
        tokenizer, fields, chat = self.service.tokenizer, self.fields, self.chat
        include_stop = bool(fields.include_stop_str_in_output)
        detokenizer = Detokenizer(
            tokenizer,
            stop_strings(fields),
            include_stop,
            fields.skip_special_tokens is not False,
            continues_text=chat is None or chat.continues,
            shown_special=frozenset() if chat is None else _shown_special(self.service, chat.use),
            min_tokens=fields.min_tokens or 0,
        )
        reader = None if chat is None else self._reader(chat, request.prompt, left_out)
        return ChoiceReply(detokenizer, include_stop, tokenizer.eos_tokens, reader)

    def _reader(self, chat: Chat, prompt: Tokens, left_out: Sequence[LeftOut]) -> ChatReader:
        format = chat.reasoning
        reasoning = None if format is None else ReasoningParser(format, format.open_at_end_of(chat.text))
        allowed = (self.fields.unenforced or self.service.config.unenforced) == "allow"

        def remember(text: str, tokens: Tokens) -> None:
            self.service.remember(chat.namespace, chat.text, prompt, text, tokens)

        return ChatReader(reasoning, chat.use.new_parser(left_out, allowed=allowed), remember)


def new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(16)}"


def cache_namespace(scope: str, salt: str | None) -> str:
    """The namespace's name. Disks and other servers see it, so it must not reveal the salt."""
    return scope + (sha256(salt.encode()).hexdigest() if salt else "")


def namespace_of(fields: SamplingFields, scope: str) -> str | None:
    """The namespace in which the prompt is looked up and cached; None for a request without the cache."""
    return None if fields.cache_prompt is False else cache_namespace(scope, fields.cache_salt)


def prepare(service: Service, checked: CheckedRequest) -> PreparedRequest:
    """One `Generate` for each choice. Choice i of every prompt samples with the seed plus i.

    Raises `RequestError` for a request that the model can't serve.
    """
    model, fields = service.engine.check_serving(), checked.fields
    shortest = min(len(prompt) // 4 for prompt in checked.prompts)
    check_prompt_logprobs_start(fields.prompt_logprobs_start, checked.prompt_logprobs, shortest)
    most = [reply_tokens(model, len(prompt) // 4, checked.limits) for prompt in checked.prompts]
    sampling = sampling_params(
        fields,
        max_tokens=min(most),
        logprobs=checked.logprobs,
        prompt_logprobs=checked.prompt_logprobs,
        vocab_size=model.vocab_size,
        defaults=model.sampling,
    )
    choices = fields.n or 1
    leases = _leases(checked)
    requests = [
        Generate(
            request=f"{checked.request_id}-{number * choices + choice}",
            client=service.engine.client,
            prompt=prompt,
            sampling=msgspec.structs.replace(
                sampling, seed=choice_seed(sampling.seed, choice), max_tokens=most[number]
            ),
            grammar=checked.grammar,
            namespace=checked.namespace,
            priority=fields.priority or 0,
            tenant=checked.tenant,
            leases=leases,
        )
        for number, prompt in enumerate(checked.prompts)
        for choice in range(choices)
    ]
    return PreparedRequest(service, fields, requests, checked.chat, checked.outline)


def _leases(checked: CheckedRequest) -> list[LeaseTerms]:
    if checked.namespace is None:
        return []
    lease, chat = checked.fields.cache_lease, checked.chat
    return [
        *checked.leases,
        *([session_lease(lease, _shared_tokens(checked))] if lease is not None else []),
        *([tool_pause_lease()] if chat is not None and chat.use.mode != "none" else []),
    ]


def _shared_tokens(checked: CheckedRequest) -> int | None:
    """Tokens of the prompt before those that the request only scores; None for a request with a reply."""
    return checked.fields.prompt_logprobs_start if checked.limits.max_tokens == 0 else None


def chat_of(
    service: Service,
    text: str,
    namespace: str | None,
    grammar: GrammarSpec | None,
    use: ToolUse,
    *,
    continues: bool,
) -> tuple[Chat, GrammarSpec | None]:
    """The chat with this rendered text, and its grammar preceded by the reasoning that may come first."""
    format = service.reasoning
    reasoned = None
    if grammar is not None and format is not None:
        reasoned = after_reasoning(grammar, format, text, calls=use.mode != "none")
    may_reason = grammar is None or reasoned is not None or use.mode == "allowed"
    chat = Chat(text, namespace, format if may_reason else None, use, continues)
    return chat, reasoned or grammar


def reply_tokens(model: ModelReady, prompt_tokens: int, limits: Limits) -> int:
    """The most tokens of the reply: `max_tokens`, or the rest of the context if that is less.

    Raises `RequestError` if the prompt leaves nothing, or if `max_tokens` alone exceeds the context.
    """
    most, max_tokens = model.max_model_len, limits.max_tokens
    context = f"This model's maximum context length is {tokens_in_words(most)}"
    if max_tokens is not None and max_tokens > most:
        message = (
            f"{context}, but {limits.param} is {max_tokens}: lower it to {most} at most, or leave it out."
        )
        raise too_long(message, limits.param)
    left = most - prompt_tokens
    if left < (0 if max_tokens == 0 else 1):
        problem = f"but the prompt has {prompt_tokens}, and the reply needs some too"
        raise too_long(f"{context}, {problem}: {shorten(limits.prompt_param)}.", limits.prompt_param)
    return left if max_tokens is None else min(left, max_tokens)


def _shown_special(service: Service, use: ToolUse) -> frozenset[int]:
    """Special tokens whose text is kept because they mark reasoning or calls."""
    reasoning = service.reasoning.shown_special(service.tokenizer) if service.reasoning else frozenset[int]()
    return reasoning | use.shown_special(service.tokenizer)
