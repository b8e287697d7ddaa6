"""From a checked request to what the scheduler is asked: one `Generate` for each choice."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from ...runtime.messages import Generate, GrammarSpec, Tokens
from ...runtime.sampling_params import SamplingParams
from ..service import Service
from ..tenants import cache_namespace
from ..text.detokenizer import Detokenizer
from .protocol import GenerationFields
from .reply import ChoiceReply
from .validation import choice_seed


def new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(16)}"


def namespace_of(request: GenerationFields, scope: str) -> str | None:
    """Where the cache looks for the prompt and keeps it, None for nowhere. Its name begins with `scope`."""
    return None if request.cache_prompt is False else cache_namespace(scope, request.cache_salt)


def generate_messages(
    request: GenerationFields,
    *,
    request_id: str,
    client: int,
    namespace: str | None,
    prompts: Sequence[Tokens],
    sampling: SamplingParams,
    most_tokens: Sequence[int],
    grammar: GrammarSpec | None,
    tenant: str,
) -> list[Generate]:
    """Prompt by prompt, `n` choices each; choice i of every prompt samples with the seed plus i.

    `most_tokens` are each prompt's most tokens of a reply, as a shorter prompt leaves more of the context.
    """
    choices = request.n or 1
    return [
        Generate(
            request=f"{request_id}-{number * choices + choice}",
            client=client,
            prompt=prompt,
            sampling=msgspec.structs.replace(
                sampling, seed=choice_seed(sampling.seed, choice), max_tokens=most_tokens[number]
            ),
            grammar=grammar,
            namespace=namespace,
            priority=request.priority or 0,
            tenant=tenant,
        )
        for number, prompt in enumerate(prompts)
        for choice in range(choices)
    ]


def choice_reply(
    service: Service,
    request: GenerationFields,
    stop: Sequence[str],
    *,
    continues_text: bool,
    shown_special: frozenset[int] = frozenset(),
) -> ChoiceReply:
    include_stop = bool(request.include_stop_str_in_output)
    detokenizer = Detokenizer(
        service.tokenizer,
        stop,
        include_stop,
        request.skip_special_tokens is not False,
        continues_text=continues_text,
        shown_special=shown_special,
        min_tokens=request.min_tokens or 0,
    )
    return ChoiceReply(detokenizer, include_stop, service.tokenizer.eos_tokens)
