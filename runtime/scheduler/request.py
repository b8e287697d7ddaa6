"""One sequence on its way through the scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ..messages import Generate, LeaseTerms, Logprobs, SlotSetup, Tokens
from ..sampling_params import SamplingParams
from .allocation import Allocation
from .constraint import Constraint
from .stored_prefix import StoredPrefix

TOKEN_BYTES = 4


class Phase(Enum):
    """Changed by `Lifecycle` only, which has the table of transitions."""

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
    allocation: Allocation  # the one that `by` had when this was found
    tokens: int

    @property
    def is_coming(self) -> bool:
        runs_on = self.by.held is self.allocation and self.by.phase is Phase.RUNNING
        return runs_on and self.allocation.planned < self.tokens


@dataclass(slots=True, eq=False)
class Request:
    """The fields are grouped by the part of the scheduler that writes them; the first group never changes."""

    id: str
    client: int  # the tokenizer process
    namespace: str | None  # None: shares no prefixes
    tenant: str  # the request counts towards this tenant's fair share
    priority: int  # lower numbers start first
    sampling: SamplingParams
    prompt_length: int  # tokens
    arrival: int  # counts requests
    grammar_param: str | None  # the field that the grammar came from, for errors
    grammar_params: Mapping[str, str]  # the same field for each function of a structural tag
    leases: Sequence[LeaseTerms]  # taken when it ends
    is_text_stream: bool  # the client gets tokens as they come, and people may read them

    tokens: bytes | bytearray  # prompt and output, packed int32; grown by `Results`
    constraint: Constraint | None = None  # None: no grammar, or not compiled yet

    # Lifecycle:
    phase: Phase = Phase.COMPILING
    held: Allocation | None = None  # None without a slot; its positions are written by planner and results
    charged: int = 0  # leading prompt tokens that earlier starts computed and that the tenant has paid for

    # WaitingQueue and Admission:
    overtaken: int = 0  # requests that started first because of a longer match
    awaits: AwaitedPrefix | None = None  # the prefix that another request computes

    # StoredPages and PageSaver:
    stored: StoredPrefix = field(default_factory=StoredPrefix)

    # Scheduler, when the request arrives and first starts:
    cached_tokens: int | None = None  # prompt tokens that the tree or the page store had
    arrived_at: float = 0.0  # seconds of a monotonic clock
    queued_s: float | None = None  # from its arrival to its first start

    # Replies; the parts of `prompt_logprobs` come from Results:
    sent: int = 0  # tokens that the client knows or gets with the next message
    has_replied: bool = False  # its first output is on its way
    prompt_logprobs: list[Logprobs] = field(default_factory=list)

    @classmethod
    def from_message(cls, message: Generate, arrival: int) -> Request:
        prompt_length = len(message.prompt) // TOKEN_BYTES
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
            is_text_stream=message.is_streamed and not (message.grammar and message.grammar.makes_value),
            tokens=message.prompt,
            sent=prompt_length,
        )

    @property
    def length(self) -> int:
        """Number of known tokens, prompt and output."""
        return len(self.tokens) // TOKEN_BYTES

    @property
    def allocation(self) -> Allocation:
        """Its allocation; only for a request with a slot."""
        assert self.held is not None, f"{self.id} has no slot"
        return self.held

    @property
    def computes_forced(self) -> bool:
        """Forced tokens are still to be computed, for its next token or (ANSWERED) for the tree."""
        if self.phase is Phase.ANSWERED:
            return self.allocation.prefilling
        return self.phase is Phase.RUNNING and self.allocation.has_forced

    @property
    def computes_prompt(self) -> bool:
        """It runs, and tokens of its prompt are still to be computed."""
        return self.phase is Phase.RUNNING and self.allocation.prefilling and not self.allocation.has_forced

    @property
    def only_decodes(self) -> bool:
        """It runs and computes one token at a time, so no other request's start depends on it."""
        return self.phase is Phase.RUNNING and not self.allocation.prefilling

    @property
    def streams_text(self) -> bool:
        """People may read its tokens as they come. Its prompt is computed; forced tokens may come next."""
        return self.is_text_stream and (self.output_length > 0 or not self.allocation.prefilling)

    @property
    def uncomputed(self) -> int:
        """Prompt tokens that its tenant was charged for at the start and that are still to be computed."""
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
    def is_answered(self) -> bool:
        """Its reply is complete: the client gets nothing more."""
        return self.phase in (Phase.ANSWERED, Phase.ENDED)

    @property
    def waits_for_prefix(self) -> bool:
        """Whether the prefix that it awaits is still being computed."""
        return self.awaits is not None and self.awaits.is_coming

    @property
    def stays(self) -> bool:
        """Whether it keeps its slot once the steps in flight are done."""
        return self.phase in (Phase.RUNNING, Phase.ANSWERED)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Prompt log-probabilities are still to be computed; they are never cached."""
        return self.sampling.prompt_logprobs is not None and self.output_length == 0

    @property
    def most_cached(self) -> int:
        """How many of its first tokens may come from the tree or the page store."""
        return self.sampling.most_cached(self.length) if self.output_length == 0 else self.length - 1

    def append(self, token: int) -> None:
        if isinstance(self.tokens, bytes):
            self.tokens = bytearray(self.tokens)
        self.tokens += token.to_bytes(TOKEN_BYTES, "little")

    def slice(self, start: int, end: int) -> Tokens:
        """The tokens at positions [start, end), packed."""
        return bytes(self.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES])

    def setup(self, slot: int, banned_tokens: Tokens) -> SlotSetup:
        """The slot's sampling and grammar state before its next token."""
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
        )
