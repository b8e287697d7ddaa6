"""A request as an API has read it from a body, before its prompt is rendered and tokenized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...runtime.messages import GrammarSpec, LeaseTerms
from .fields import SamplingFields
from .messages import Conversation
from .requested_tools import CallsWanted

NO_CALLS = CallsWanted("none")


class Limits(NamedTuple):
    """The limit `max_tokens` of a reply, and the name of its field in errors.

    With `context`, the value of the field `context_param`, prompt and reply have at most that many tokens
    together, and `max_tokens` is lowered to it. `is_required`: the field can't be left out.
    """

    max_tokens: int | None
    param: str
    context: int | None = None
    context_param: str = ""
    is_required: bool = False


class Beginning(NamedTuple):
    """A prompt's beginning, up to a breakpoint: it stays cached for `ttl_s` seconds."""

    conversation: Conversation
    tools: list[dict[str, Any]] | None
    ttl_s: float


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What a reply continues: a `conversation`, or texts and lists of token ids. `param` names it in errors.

    `tools` are the definitions that the chat template prints. `special`: the tokenizer's own special tokens
    are put around the text.
    """

    param: str
    conversation: Conversation | None = None
    tools: list[dict[str, Any]] | None = None
    beginnings: Sequence[Beginning] = ()
    items: Sequence[str | list[int]] = ()
    special: bool = False


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A request whose fields are valid.

    `is_chat`: a reply may have reasoning and calls of tools; otherwise all its text is content. `constraint`
    comes from the request's fields, without the grammar of its calls. `logprobs` and `prompt_logprobs` are
    numbers of alternatives, None for none at all. `leases` are in addition to leases of breakpoints and
    fields.
    `prediction`: what the client expects of the reply. `explains`: the answer says why tokens of the prompt
    were not cached. `model`: the requested model or adapter.
    """

    fields: SamplingFields
    prompt: Prompt
    limits: Limits
    is_chat: bool = False
    calls: CallsWanted = NO_CALLS
    constraint: GrammarSpec | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    leases: Sequence[LeaseTerms] = ()
    user: str | None = None
    streams: bool = False
    prediction: str = ""
    explains: bool = False
    model: str | None = None
