"""Tokenizer ↔ scheduler: requests and their outputs."""

from __future__ import annotations

from typing import Literal

from ..api_keys import Allowances, Quota
from ..grammar_spec import GrammarSpec
from ..sampling_params import SamplingParams
from .base import FinishReason, Message, Part, StoreCounts, Tokens

LeaseKind = Literal["conversation", "breakpoint", "keep_alive", "session", "tool_pause"]
BACKGROUND_PRIORITY = 1 << 31
"""Of requests that start after all others, also after those of other API keys. Clients can't choose it."""


class LeaseTerms(Part):
    """A lease that a request takes when it ends: its cached tokens are evicted last for a time."""

    kind: LeaseKind
    ttl_s: float  # from the end of the request
    key: str = ""  # a later request of the tenant with this key replaces the lease; empty: none does
    end: int | None = None  # tokens of the prompt to lease; None: the whole prompt and reply
    most: int = 1
    """most leases under the key. A new lease first replaces the leases on its own prefix, then the oldest."""


class Generate(Message):
    """One sequence to generate. A request with `n` choices is n of these."""

    request: str
    client: int
    prompt: Tokens
    sampling: SamplingParams
    grammar: GrammarSpec | None = None
    namespace: str | None = ""  # in which it shares prefixes; None: the cache is neither read nor filled
    priority: int = 0  # lower numbers start first
    tenant: str = ""  # the request counts towards this tenant's fair share
    leases: list[LeaseTerms] = []  # ignored without a namespace
    quota: Quota | None = None  # None: its key has no limits
    is_streamed: bool = True  # False: the client gets the reply as a whole, so its tokens may come in bursts


class Abort(Message):
    """The client has disconnected: end the request without an answer."""

    request: str


class Finish(Message):
    """A stop string was found in the text: the reply is its first `tokens_kept` tokens."""

    request: str
    tokens_kept: int


class AwaitTools(Message):
    """A reply ended in tool calls: its `tool_pause` lease lasts until their results are likely to come."""

    request: str
    tools: list[str]  # names


class EndLease(Message):
    """End the tenant's leases under `key`; without a key all leases of `kind`."""

    namespace: str
    tenant: str
    key: str | None
    kind: LeaseKind | None = None

    def ends(self, kind: str, key: str) -> bool:
        """Whether a lease of the tenant in the namespace is one of them."""
        return kind == self.kind if self.key is None else key == self.key


class QueryStats(Message):
    client: int
    query: int


class LeftOutKeyword(Part):
    """A keyword of a schema that is not enforced."""

    keyword: str
    path: str  # its place in the schema


class Accepted(Message):
    request: str
    left_out: list[LeftOutKeyword] = []
    allowances: Allowances | None = None  # what its key has left after this request


class Refused(Message):
    """The request is refused before it starts, so it gets no `Outputs`."""

    request: str
    status: int  # HTTP
    message: str
    param: str | None = None  # the field at fault
    code: str | None = None
    retry_after: int | None = None  # seconds, if known
    allowances: Allowances | None = None  # what its key has left


class Logprobs(Part):
    """Log-probabilities (natural, of the raw logits) of n tokens with k alternatives each."""

    chosen: bytes  # float32 [n]
    top_ids: bytes  # int32 [n, k]
    top_values: bytes  # float32 [n, k], descending


class ReplyError(Part):
    """Why a reply ended early."""

    message: str
    status: int = 500  # HTTP
    param: str | None = None  # the field at fault
    code: str = "error"


class Output(Part):
    """The tokens that one request got in a step. Its last output has `finish`."""

    request: str
    tokens: Tokens = b""
    logprobs: Logprobs | None = None
    finish: FinishReason | None = None
    stop_token: int | None = None  # the last of `tokens`, if that end-of-sequence or stop id ended the reply
    error: ReplyError | None = None
    cached_tokens: int | None = None  # cached tokens of the prompt; in the first output
    prompt_logprobs: Logprobs | None = None  # for the prompt's last tokens; in the first output
    queued_s: float | None = None  # from its arrival to its start; in the first output


class Outputs(Message):
    items: list[Output]


class Stats(Message):
    """A snapshot of the scheduler. Counters count from the start of the epoch."""

    query: int
    running: int  # requests
    waiting: int  # requests
    pages_total: int
    pages_used: int
    pages_cached: int
    pages_pinned: int
    prompt_tokens_cached: int
    prompt_tokens_looked_up: int  # of requests that read the cache
    prompt_tokens_computed: int
    output_tokens: int
    forced_tokens: int
    retractions: int
    evicted_pages: int
    steps: int
    store: StoreCounts
    leases: dict[str, int] = {}  # by kind
    pages_leased: int = 0  # under a lease, even if a request or a pin uses them too
    broken_leases: int = 0  # ended early because pages ran short, or by the quota
