"""One sequence on its way through the scheduler."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile
from typing import NamedTuple

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
    LEAVING = "is answered; tokens that were forced at its end are still to be computed for the tree"
    ENDED = "is answered; holds its slot and pages until its last step is over"


class Turn(NamedTuple):
    """A place among the prompts, the least first.

    `in_order` is false for a prompt that is put back no more. `ahead` is by how many tokens its tenant is
    beyond the bound of fairness. Where priorities order a tenant's own requests alone, `priority` is 0 and
    `in_order` true for all, and `own_in_order` and `own_priority` (above the best that the tenant has) stand
    for them.
    """

    in_order: bool
    priority: int
    ahead: float
    own_in_order: bool = True
    own_priority: int = 0

    @property
    def is_last(self) -> bool:
        """The prompt was put back so often that it is put back no more."""
        return not (self.in_order and self.own_in_order)


class LentTurn(NamedTuple):
    """A better turn, for the first `tokens` of the prompt."""

    turn: Turn
    tokens: int


@dataclass(slots=True, eq=False)
class Residence:
    """What a request has while it runs: all of it is given back together.

    `prefill_end` is how many tokens were known when it started, or when some were forced; `planned` how
    many tokens' KV is there or planned, of which up to `restore_end` are not computed but come from the page
    store; `saved_pages` how many pages that was offered. `sampling` is how many sampled tokens are on their
    way back, without those of steps up to `superseded`: others were forced in their place. `is_set_up`: the
    model process has what the next token depends on. `faulty`: the model could not go on from its KV, so
    nobody else shall. `preempted` counts the prompts that were put before its own, `urgent` says that no
    more are; `lent` are the turns of those that wait for its pages, a better one for less of the prompt.
    """

    slot: int
    lease: Lease
    pages: list[int]
    prefill_end: int
    planned: int
    restore_end: int = 0
    saved_pages: int = 0
    sampling: int = 0
    sent_pages: int = 0
    last_step: int = 0
    superseded: int = 0
    is_set_up: bool = False
    copy_step: int | None = None
    faulty: bool = False
    preempted: int = 0
    urgent: bool = False
    lent: list[LentTurn] = field(default_factory=list)

    @property
    def prefilling(self) -> bool:
        return self.planned < self.prefill_end

    @property
    def restoring(self) -> bool:
        """Has pages that the page store is still to give."""
        return self.planned < self.restore_end

    @property
    def to_restore(self) -> int:
        """Tokens that they hold."""
        return max(0, self.restore_end - self.planned)

    @property
    def ready(self) -> int:
        """Tokens that need no computing any more."""
        return max(self.planned, self.restore_end)

    @property
    def jumping(self) -> bool:
        """Has forced tokens to compute."""
        return self.prefilling and self.superseded > 0

    def lend(self, better: LentTurn) -> None:
        if any(each.turn <= better.turn and each.tokens >= better.tokens for each in self.lent):
            return
        kept = [each for each in self.lent if each.turn < better.turn or each.tokens > better.tokens]
        self.lent = [*kept, better]

    def jump(self, end: int) -> None:
        """Tokens were forced up to `end`; those that are being sampled count no more."""
        assert self.planned < end, (self.planned, end)
        self.prefill_end = end
        self.sampling = 0
        self.superseded = self.last_step
        self.is_set_up = False
        self.sent_pages = 0


@dataclass(frozen=True, slots=True)
class Awaited:
    """The first `tokens` of a prompt, as far as another request, which runs, computes them too."""

    by: Request
    home: Residence
    tokens: int

    @property
    def is_coming(self) -> bool:
        return (
            self.by.home is self.home and self.by.phase is Phase.RUNNING and self.home.planned < self.tokens
        )


@dataclass(slots=True)
class Fetch:
    """What the page store was asked for: full pages of the request's tokens from page `first` on.

    `found` is how many of them are stored, `pages` how many are ready to be restored; None while that isn't
    answered. `asked`: it is to get them ready. `restored`: steps have begun to restore them.
    """

    id: int
    first: int
    found: int | None = None
    pages: int | None = None
    asked: bool = False
    restored: bool = False

    @property
    def unanswered(self) -> bool:
        return self.pages is None if self.asked else self.found is None

    @property
    def size(self) -> int:
        """In pages, as far as it is known."""
        return (self.found or 0) if self.pages is None else self.pages

    @property
    def end(self) -> int:
        """The page after the last one."""
        return self.first + self.size


@dataclass(slots=True)
class LookUp:
    """What was there of a request's tokens when the page store was asked for the rest.

    `first` is how many full pages the tree had, `missing` are the keys of the others, and `coming` those of
    them that were still being copied out to the store: once it has answered, of the pages that follow what it
    had. `number` counts the look-ups before a start. `missing` is needed until the answer only.
    """

    first: int
    missing: list[bytes]
    coming: Collection[bytes]
    number: int

    def answer(self, found: int) -> None:
        """So many of the missing pages are stored."""
        self.coming = list(takewhile(self.coming.__contains__, self.missing[found:]))
        self.missing = []


@dataclass(slots=True, eq=False)
class Request:
    """`tokens` are the prompt's and the output's, packed; `arrival` counts requests.

    `tenant` is whose fair share it is served from. `overtaken` counts those that went first for their
    match, `awaited` is the prefix that it waits for, `look_up` what was there when the page store was asked,
    `fetch` what that has for it, `keys` are those of its first pages, as far as they are known. `paid`:
    tokens of its prompt that are paid for. `home` is what it has while it runs. `cached_tokens` is what its
    first start found of the prompt; `sent` how many tokens the client knows of; `answered`: its first output
    is on its way.
    """

    id: str
    client: int
    namespace: str | None
    tenant: str
    priority: int
    sampling: SamplingParams
    tokens: bytearray
    prompt_length: int
    sent: int
    arrival: int
    constraint: Constraint | None = None
    phase: Phase = Phase.COMPILING
    overtaken: int = 0
    paid: int = 0
    awaited: Awaited | None = None
    look_up: LookUp | None = None
    fetch: Fetch | None = None
    keys: bytes = b""
    home: Residence | None = None
    cached_tokens: int | None = None
    answered: bool = False
    grammar_param: str | None = None
    grammar_params: Mapping[str, str] = field(default_factory=dict)
    prompt_logprobs: list[Logprobs] = field(default_factory=list)

    @classmethod
    def from_message(cls, message: Generate, arrival: int) -> Request:
        return cls(
            id=message.request,
            client=message.client,
            namespace=message.namespace,
            tenant=message.tenant,
            priority=message.priority,
            sampling=message.sampling,
            tokens=bytearray(message.prompt),
            prompt_length=len(message.prompt) // TOKEN_BYTES,
            sent=len(message.prompt) // TOKEN_BYTES,
            grammar_param=message.grammar.param if message.grammar else None,
            grammar_params=message.grammar.params if message.grammar else {},
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
    def awaits_fetch(self) -> bool:
        """The page store has not answered yet."""
        return self.fetch is not None and self.fetch.unanswered

    @property
    def computes_forced(self) -> bool:
        """Has forced tokens to compute, for itself or, when it leaves, for the tree."""
        if self.phase is Phase.LEAVING:
            return self.residence.prefilling
        return self.phase is Phase.RUNNING and self.residence.jumping

    @property
    def computes_prompt(self) -> bool:
        """Runs, and has tokens of its prompt to compute."""
        return self.phase is Phase.RUNNING and self.residence.prefilling and not self.residence.jumping

    @property
    def only_decodes(self) -> bool:
        """Runs, and has one token at a time to compute: no other request's start depends on it."""
        return self.phase is Phase.RUNNING and not self.residence.prefilling

    @property
    def owed(self) -> int:
        """Tokens of its prompt that it is charged for and that are still to compute."""
        return max(0, self.prompt_length - max(self.paid, self.residence.ready))

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
        """To its end: nothing more is said to the client."""
        return self.phase in (Phase.LEAVING, Phase.ENDED)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """They are computed, never cached, and sent with the first output."""
        return self.sampling.prompt_logprobs is not None and self.output_length == 0

    def append(self, token: int) -> None:
        self.tokens += token.to_bytes(TOKEN_BYTES, "little")

    def slice(self, start: int, end: int) -> Tokens:
        """Tokens of the half-open range, packed."""
        return bytes(self.tokens[start * TOKEN_BYTES : end * TOKEN_BYTES])

    def setup(self, slot: int, banned_tokens: Tokens) -> SlotSetup:
        """The row's sent-once state, as it stands before its next token."""
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
