"""One sequence on its way through the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ...radix_cache import Lease
from ..messages import Generate, Logprobs, SlotSetup, Tokens
from ..sampling_params import SamplingParams
from .constraint import Constraint

TOKEN_BYTES = 4


class Phase(Enum):
    COMPILING = "its grammar is being compiled"
    WAITING = "waits for a slot, pages or a prefix that another request computes"
    RUNNING = "has a slot and pages"
    RETRACTING = "is planned no more; goes back to waiting when its last step is over"
    ENDED = "is answered; holds its slot and pages until its last step is over"


@dataclass(slots=True, eq=False)
class Residence:
    """What a request has while it runs: all of it is given back together.

    `prefill_end` is how many tokens were known when it started; `planned` how many tokens' KV is
    computed or planned; `sampling` how many sampled tokens are on their way back. `faulty`: the model
    could not go on from its KV, so nobody else shall.
    """

    slot: int
    lease: Lease
    pages: list[int]
    prefill_end: int
    planned: int
    sampling: int = 0
    sent_pages: int = 0
    last_step: int = 0
    copy_step: int | None = None
    faulty: bool = False

    @property
    def started(self) -> bool:
        return self.last_step > 0

    @property
    def prefilling(self) -> bool:
        return self.planned < self.prefill_end


@dataclass(slots=True, eq=False)
class Request:
    """`tokens` are the prompt's and the output's, packed; `arrival` counts requests.

    `home` is what it has while it runs. `cached_tokens` is what its first start found in the tree;
    `answered`: its first output is on its way.
    """

    id: str
    client: int
    namespace: str | None
    priority: int
    sampling: SamplingParams
    tokens: bytearray
    prompt_length: int
    arrival: int
    constraint: Constraint | None = None
    phase: Phase = Phase.COMPILING
    overtaken: int = 0
    home: Residence | None = None
    cached_tokens: int | None = None
    answered: bool = False
    grammar_param: str | None = None
    prompt_logprobs: list[Logprobs] = field(default_factory=list)

    @classmethod
    def from_message(cls, message: Generate, arrival: int) -> Request:
        return cls(
            id=message.request,
            client=message.client,
            namespace=message.namespace,
            priority=message.priority,
            sampling=message.sampling,
            tokens=bytearray(message.prompt),
            prompt_length=len(message.prompt) // TOKEN_BYTES,
            grammar_param=message.grammar.param if message.grammar else None,
            arrival=arrival,
        )

    @property
    def length(self) -> int:
        """Known tokens, prompt and output."""
        return len(self.tokens) // TOKEN_BYTES

    @property
    def residence(self) -> Residence:
        assert self.home is not None, f"{self.id} does not run"
        return self.home

    @property
    def output_length(self) -> int:
        return self.length - self.prompt_length

    @property
    def max_length(self) -> int:
        return self.prompt_length + self.sampling.max_tokens

    @property
    def wants_prompt_logprobs(self) -> bool:
        """They are computed, never cached, and sent with the first output."""
        return self.sampling.prompt_logprobs is not None and self.output_length == 0

    def slice(self, start: int, end: int) -> Tokens:
        """Tokens of the half-open range, packed."""
        return bytes(self.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES])

    def setup(self, slot: int, banned_tokens: Tokens) -> SlotSetup:
        """The row's sent-once state, as it stands before its next token."""
        sampling = self.sampling
        output = self.slice(self.prompt_length, self.length)
        at = self.constraint.device_state(output) if self.constraint else None
        return SlotSetup(
            slot=slot,
            sampling=sampling,
            position=self.output_length,
            prompt=self.slice(0, self.prompt_length) if sampling.uses_penalties else b"",
            output=output if sampling.uses_penalties else b"",
            banned_tokens=banned_tokens if self.output_length < sampling.min_tokens else b"",
            grammar=at.grammar if at else None,
            state=at.state if at else 0,
            stack=at.stack if at else b"",
        )
