"""Tokenizer ↔ scheduler: requests and their outputs."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from ..api_keys import Allowances, Quota
from ..grammar_spec import GrammarSpec
from ..sampling_params import SamplingParams
from .base import FinishReason, Message, Part, StoreCounts, Tokens

LeaseKind = Literal["conversation", "breakpoint", "keep_alive", "session", "tool_pause"]
BACKGROUND_PRIORITY = 1 << 31
"""priority of requests that start after all others, even of other API keys. Clients can't choose it."""
PREFILL_CLIENT = -1
"""client of the requests that compute prompts for other servers: the page store"""


class LeaseTerms(Part):
    """A lease that a request takes when it ends: its cached tokens are evicted last for a time."""

    kind: LeaseKind
    ttl_s: float  # seconds that the lease lasts from the end of the request
    key: str = ""  # a later request of the tenant with this key replaces the lease; empty: no request does
    end: int | None = None  # number of prompt tokens to lease; None: the whole prompt and reply
    most: int = 1
    """maximal number of leases with the key. A new one replaces those on its own prefix, then the oldest."""


class Generate(Message):
    """One sequence to generate. A request with `n` choices becomes n messages."""

    request: str
    client: int
    prompt: Tokens
    sampling: SamplingParams
    grammar: GrammarSpec | None = None
    namespace: str | None = ""  # namespace of its prefixes; None: the cache is neither read nor filled
    priority: int = 0  # lower numbers start first
    tenant: str = ""  # the tenant towards whose fair share the request counts
    leases: list[LeaseTerms] = []  # leases to take when it ends; ignored without a namespace
    quota: Quota | None = None  # None: its API key has no limits
    adapter: str = ""  # digest of its adapter; empty: the base model
    is_streamed: bool = True  # False: the client gets the reply as a whole, so its tokens may come in bursts
    second: int = 0  # position of the first token of a pair's second text; 0: the prompt is no pair
    prediction: Tokens = b""  # what the client expects of the reply, to draft from
    uncached: int = 0  # with several replicas, how many of its tokens the router expects to be computed
    output: Tokens = (
        b""  # the reply's tokens so far, which a replica has made that died; it goes on after them
    )
    saved_from: int | None = None
    """first page to copy to host memory as it is computed, for another server; None: as configured"""


class Abort(Message):
    """The client has disconnected: end the request without an answer."""

    request: str


class Finish(Message):
    """A stop string was found in the text, so the reply is complete."""

    request: str


class AwaitTools(Message):
    """A reply ended in tool calls: its `tool_pause` lease lasts until their results are likely to come."""

    request: str
    tools: list[str]  # names of the called tools


class EndLease(Message):
    """End the tenant's leases under `key`; without a key, all leases of `kind`."""

    namespace: str
    tenant: str
    key: str | None
    kind: LeaseKind | None = None

    def ends(self, kind: str, key: str) -> bool:
        """Whether the order ends a lease of the tenant in the namespace with this kind and key."""
        return kind == self.kind if self.key is None else key == self.key


class QueryStats(Message):
    client: int
    query: int


class QueryRequests(Message):
    """List the open requests of a tenant; None: of all tenants."""

    client: int
    query: int
    tenant: str | None = None


class LeftOutKeyword(Part):
    """A keyword of a schema that is not enforced."""

    keyword: str
    path: str  # place of the keyword in the schema


class Accepted(Message):
    request: str
    left_out: list[LeftOutKeyword] = []
    allowances: Allowances | None = None  # what the API key has left after this request


class Refused(Message):
    """The request is refused before it starts, so it gets no `Outputs`."""

    request: str
    status: int  # HTTP status
    message: str
    param: str | None = None  # the request's field at fault
    code: str | None = None
    retry_after: int | None = None  # seconds until a retry may succeed, if known
    allowances: Allowances | None = None  # what the API key has left


class Logprobs(Part):
    """Log-probabilities (natural, of the raw logits) of n tokens with k alternatives each."""

    chosen: bytes  # float32 [n]: log-probabilities of the tokens
    top_ids: bytes  # int32 [n, k]: ids of the alternatives
    top_values: bytes  # float32 [n, k]: log-probabilities of the alternatives, descending


class ReplyError(Part):
    """Why a reply ended early."""

    message: str
    status: int = 500  # HTTP status
    param: str | None = None  # the request's field at fault
    code: str = "error"


class PredictionCounts(Part):
    """Drafts from a request's `prediction`."""

    accepted: int  # those that the reply has
    rejected: int  # those that the model did not sample


class DraftCounts(Part):
    """A reply's steps, and the drafts in them."""

    steps: int = 0  # those that sampled tokens of the reply
    drafted: int = 0  # drafts that were computed
    accepted: int = 0  # drafts that the model sampled

    def add(self, other: DraftCounts) -> None:
        self.steps += other.steps
        self.drafted += other.drafted
        self.accepted += other.accepted


class Output(Part):
    """The tokens that one request got in a step. The last output of a request has `finish`."""

    request: str
    tokens: Tokens = b""
    logprobs: Logprobs | None = None
    finish: FinishReason | None = None
    stop_token: int | None = None  # the last of `tokens`, if this end-of-sequence or stop id ended the reply
    error: ReplyError | None = None
    cached_tokens: int | None = None  # prompt tokens that were cached; only in the first output
    prompt_logprobs: Logprobs | None = None  # for the prompt's last tokens; only in the first output
    queued_s: float | None = None  # seconds from the request's arrival to its start; only in the first output
    vector: bytes | None = None  # float32, from a model that pools
    prediction: PredictionCounts | None = None  # since the last output; None: there were none
    drafts: DraftCounts | None = None
    """steps and drafts since the last output; None before the first draft"""


class Outputs(Message):
    items: list[Output]


RequestState: TypeAlias = Literal["compiling", "waiting", "prefill", "decode"]


class OpenRequest(Struct):
    """A request whose reply is not complete. `id` is the reply's id with the number of the choice. Before the
    request first starts, `cached_tokens` is None. `ready_tokens` of the prompt are cached or computed."""

    id: str
    state: RequestState
    age_s: float
    prompt_tokens: int
    cached_tokens: int | None
    ready_tokens: int
    output_tokens: int


class RequestList(Message):
    """The oldest open requests, and the number of all."""

    query: int
    total: int
    items: list[OpenRequest]


class GroupPages(Part):
    """The pages of the layers whose attention sees only the latest tokens."""

    free: int
    cached: int  # pages that only the radix tree holds


class Stats(Message):
    """A snapshot of the scheduler. Counters count from the start of the epoch."""

    query: int
    running: int  # number of running requests
    waiting: int  # number of waiting requests
    pages_total: int
    pages_used: int
    pages_cached: int
    pages_pinned: int
    prompt_tokens_cached: int
    prompt_tokens_looked_up: int  # prompt tokens of requests that read the cache
    prompt_tokens_computed: int
    output_tokens: int
    forced_tokens: int
    retractions: int
    evicted_pages: int
    steps: int
    store: StoreCounts
    leases: dict[str, int] = {}  # number of leases of each kind
    pages_leased: int = 0  # pages under a lease, even if a request or a pin uses them too
    broken_leases: int = 0  # leases that ended early because pages ran short, or because of the quota
    windows: list[GroupPages] = []  # by windowed group, in the order of `ModelReady.groups` after the first
    drafted: dict[str, int] = {}  # drafts, by `DRAFT_SOURCES`
    accepted: dict[str, int] = {}  # those that the model sampled
    reply_steps: int = 0  # steps that sampled tokens of a reply, counted for each reply
