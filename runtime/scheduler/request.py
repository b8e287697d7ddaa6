"""One sequence on its way through the scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ..messages import (
    NO_STATE,
    TOKEN_BYTES,
    DraftCounts,
    Generate,
    LeaseTerms,
    Logprobs,
    PredictionCounts,
    SlotSetup,
    Tokens,
)
from ..sampling_params import SamplingParams
from .allocation import Allocation
from .constraint import Constraint
from .stored_prefix import StoredPrefix


class Phase(Enum):
    """The phase of a request. Only `Lifecycle`, which has the table of transitions, changes it."""

    COMPILING = "its grammar is being compiled"
    WAITING = "waits for a slot, pages, or a prefix that another request computes"
    RUNNING = "has a slot and pages"
    RETRACTING = "is in no further step; waits again when its last step is done"
    ANSWERED = "its reply is complete; forced tokens at its end are still computed for the tree"
    ENDED = "is in no further step; keeps its slot and pages until its last step is done"


@dataclass(frozen=True, slots=True)
class AwaitedPrefix:
    """The first `tokens` of a waiting request, which the running request `by` computes too."""

    by: Request
    allocation: Allocation  # allocation that `by` had when the prefix was found
    tokens: int

    @property
    def is_coming(self) -> bool:
        runs_on = self.by.held is self.allocation and self.by.phase is Phase.RUNNING
        return runs_on and self.allocation.planned < self.tokens


@dataclass(slots=True, eq=False)
class Request:
    """A request's state, grouped by the part of the scheduler that writes it. The first group is fixed."""

    id: str
    client: int  # number of the tokenizer process
    namespace: str | None  # None: shares no prefixes
    tenant: str  # the tenant towards whose fair share the request counts
    priority: int  # lower numbers start first
    sampling: SamplingParams
    prompt_length: int  # length of the prompt in tokens
    arrival: int  # number of the request in the order of arrival
    grammar_param: str | None  # the request's field with the grammar, for errors
    grammar_params: Mapping[str, str]  # the field with the schema of each function in a structural tag
    leases: Sequence[LeaseTerms]  # leases to take when the request ends
    wants_text_stream: bool  # whether the client gets tokens as they come, and people may read them
    second: int  # position of the first token of a pair's second text; 0: the prompt is no pair
    prediction: Tokens  # what the client expects of the reply
    uncached: int  # with several replicas, how many tokens the router expected to be computed
    saved_from: int | None  # first page to save as it is computed, for another server; None: as configured

    tokens: bytes | bytearray  # prompt and output, packed int32, `bytes` while only read. `Results` appends:
    constraint: Constraint | None = None  # None: no grammar, or not compiled yet

    # `Lifecycle` writes these:
    phase: Phase = Phase.COMPILING
    held: Allocation | None = None  # None without a slot. Planner and results write its positions.
    adapter: int | None = None  # place of its adapter in the model process; None: the base model
    charged: int = 0  # leading prompt tokens that earlier starts computed and that the tenant has paid for

    # `WaitingQueue` and `Admission` write these:
    overtaken: int = 0  # number of requests that started first because of a longer match
    awaits: AwaitedPrefix | None = None  # the prefix that another request is computing

    # `StoredPages` and `PageSaver` write this:
    stored: StoredPrefix = field(default_factory=StoredPrefix)

    # The scheduler writes these when the request arrives and first starts:
    cached_tokens: int | None = None  # prompt tokens that the tree or the page store had
    arrived_at: float = 0.0  # time of its arrival, in seconds of a monotonic clock
    queued_s: float | None = None  # seconds from its arrival to its first start

    # `Results` writes these:
    vector: bytes | None = None  # the vector that the model made of the prompt
    predicted: PredictionCounts | None = None  # drafts from `prediction` that the client does not know of yet

    drafts: DraftCounts = field(default_factory=DraftCounts)  # steps that the client does not know of yet
    has_drafts: bool = False  # whether any step had drafts of the request

    # `Replies` writes these, with the parts of `prompt_logprobs` from `Results`:
    sent: int = 0  # number of tokens that the client knows or gets with the next message
    has_replied: bool = False  # whether its first output was sent
    prompt_logprobs: list[Logprobs] = field(default_factory=list)

    @classmethod
    def from_message(cls, message: Generate, arrival: int) -> Request:
        prompt_length = len(message.prompt) // TOKEN_BYTES
        tokens = message.prompt + message.output
        return cls(
            id=message.request,
            client=message.client,
            namespace=message.namespace,
            tenant=message.tenant,
            priority=message.priority,
            sampling=message.sampling,
            prompt_length=prompt_length,
            arrival=arrival,
            grammar_param=message.grammar.param if message.grammar else None,
            grammar_params=message.grammar.params if message.grammar else {},
            leases=message.leases,
            wants_text_stream=message.is_streamed and not (message.grammar and message.grammar.makes_value),
            second=message.second,
            prediction=message.prediction,
            uncached=message.uncached,
            saved_from=message.saved_from,
            tokens=tokens,
            sent=len(tokens) // TOKEN_BYTES,
        )

    @property
    def length(self) -> int:
        """Number of known tokens in prompt and output."""
        return len(self.tokens) // TOKEN_BYTES

    @property
    def allocation(self) -> Allocation:
        """The request's allocation. Only a request with a slot has one."""
        assert self.held is not None, f"{self.id} has no slot"
        return self.held

    @property
    def computes_forced(self) -> bool:
        """Whether forced tokens are still to be computed, for the next token or (ANSWERED) for the tree."""
        if self.phase is Phase.ANSWERED:
            return self.allocation.prefilling
        return self.phase is Phase.RUNNING and self.allocation.has_forced

    @property
    def computes_prompt(self) -> bool:
        """Whether it runs and tokens of its prompt are still to be computed."""
        return self.phase is Phase.RUNNING and self.allocation.prefilling and not self.allocation.has_forced

    @property
    def only_decodes(self) -> bool:
        """Whether it runs and computes one token at a time, so no other request's start depends on it."""
        return self.phase is Phase.RUNNING and not self.allocation.prefilling

    @property
    def is_streaming_text(self) -> bool:
        """Whether its prompt is computed and people may read its tokens as they come, even forced ones."""
        return self.wants_text_stream and (self.output_length > 0 or not self.allocation.prefilling)

    @property
    def uncomputed(self) -> int:
        """Number of prompt tokens that were charged at the start and are still to be computed."""
        return max(0, self.prompt_length - max(self.charged, self.allocation.ready))

    @property
    def output_length(self) -> int:
        return self.length - self.prompt_length

    @property
    def last_token(self) -> int:
        return int.from_bytes(self.tokens[-TOKEN_BYTES:], "little")

    @property
    def max_length(self) -> int:
        return self.prompt_length + self.sampling.max_tokens

    @property
    def max_drafts(self) -> int:
        """The most drafts that the request allows in a step. The host's masks are of one token."""
        is_host_masked = self.constraint is not None and self.constraint.host_masked
        return 0 if is_host_masked else self.sampling.max_drafts

    @property
    def is_answered(self) -> bool:
        """Whether its reply is complete, so that the client gets nothing more."""
        return self.phase in (Phase.ANSWERED, Phase.ENDED)

    @property
    def waits_for_prefix(self) -> bool:
        """Whether the prefix that the request awaits is still being computed."""
        return self.awaits is not None and self.awaits.is_coming

    @property
    def stays(self) -> bool:
        """Whether the request keeps its slot once the steps in flight are done."""
        return self.phase in (Phase.RUNNING, Phase.ANSWERED)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether prompt log-probabilities, which are never cached, are still to be computed."""
        return self.sampling.prompt_logprobs is not None and self.output_length == 0

    @property
    def most_cached(self) -> int:
        """How many of the request's first tokens may come from the tree or the page store."""
        return self.sampling.most_cached(self.length) if self.output_length == 0 else self.length - 1

    def count_predicted(self, accepted: int = 0, rejected: int = 0) -> None:
        """Counts drafts from `prediction` that the reply has, and those that the model did not sample."""
        before = self.predicted or PredictionCounts(0, 0)
        self.predicted = PredictionCounts(before.accepted + accepted, before.rejected + rejected)

    def count_drafts(self, drafted: int, accepted: int) -> None:
        """Counts the drafts of a step."""
        self.has_drafts = True
        self.drafts.drafted += drafted
        self.drafts.accepted += accepted

    def append(self, token: int) -> None:
        if isinstance(self.tokens, bytes):
            self.tokens = bytearray(self.tokens)
        self.tokens += token.to_bytes(TOKEN_BYTES, "little")

    def freeze_tokens(self) -> Tokens:
        """All tokens. Copies them only if some were appended since the last call."""
        self.tokens = bytes(self.tokens)
        return self.tokens

    def slice(self, start: int, end: int) -> Tokens:
        """The tokens at positions [start, end), packed."""
        return bytes(self.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES])

    def setup(self, slot: int, banned_tokens: Tokens, *, for_drafts: bool) -> SlotSetup:
        """The slot's sampling and grammar state before its next token. for_drafts: whether the model process
        may make drafts for the request"""
        sampling = self.sampling
        at = self.constraint.device_state() if self.constraint else None
        return SlotSetup(
            slot=slot,
            sampling=sampling,
            position=self.output_length,
            prompt=self.slice(0, self.prompt_length) if sampling.uses_penalties else b"",
            output=self.slice(self.prompt_length, self.length) if sampling.uses_penalties else b"",
            banned_tokens=banned_tokens if self.output_length < sampling.min_tokens else b"",
            grammar=at.grammar if at else None,
            state=at.state if at else 0,
            stack=at.stack if at else b"",
            adapter=self.adapter,
            state_place=NO_STATE if self.allocation.lock.state is None else self.allocation.lock.state,
            context=self.slice(self.allocation.known, self.length) if for_drafts else b"",
            context_start=self.allocation.known if for_drafts else 0,
            namespace=self.namespace if for_drafts else None,
            prediction=self.prediction if for_drafts and not self.allocation.known else b"",
        )
