"""A replica in simulated time: the real scheduler and prefix cache, whose steps only take time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from ...grammars import ForcedText, GrammarCompiler
from ...radix_cache import PrefixCache
from ...runtime.messages import (
    PREFILL_CLIENT,
    Message,
    SavePages,
    SchedulerInbox,
    StepPlan,
    StepResult,
    WatchReplica,
)
from ...runtime.scheduler.budget import StepBudget
from ...runtime.scheduler.grammar_loader import GrammarLoader
from ...runtime.scheduler.refusals import Limits
from ...runtime.scheduler.scheduler import Now, Scheduler
from ...runtime.scheduler.step_records import StepMeter
from ...runtime.vocabulary import build_vocabulary
from .figures import Usage
from .step_cost import Cost
from .workload import MAX_BLOCK_ID

VOCABULARY = 32  # tokens; no mask is made
CLIENT = 0
UNLIMITED = 1 << 20
MODEL = b"simulated"
"""enters the keys of pages that travel between replicas"""
Role = Literal["both", "prefill", "decode"]


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The capacity of a replica. `slots` is `--max-running` of `arbora serve`, `step_ms` its `--step-ms`."""

    pages: int
    page_size: int
    slots: int = 64
    step_ms: float = 60.0
    max_model_len: int = 1 << 20


class _NoGrammars:
    """Tokenizes nothing, because no text is forced."""

    def sure_tokens(self, forced: ForcedText) -> Sequence[int]:
        return ()

    def ending_tokens(self, text: bytes) -> Sequence[int] | None:
        return None


class Replica:
    """Runs one step at a time, and has planned the next one by then, as the model process does."""

    def __init__(self, shape: Shape, cost: Cost, role: Role = "both", is_watched: bool = False) -> None:
        """is_watched: sends reports for a router"""
        self.role = role
        self.cache = PrefixCache(shape.pages, shape.page_size, model=b"" if role == "both" else MODEL)
        self._busy_s = 0.0
        self._used_page_s = 0.0  # pages in use by requests, summed over the seconds of steps
        limits = Limits(max_model_len=shape.max_model_len, slots=shape.slots, max_waiting=UNLIMITED)
        compiler = GrammarCompiler(build_vocabulary([b"a"], [False], ()), 1)
        self.scheduler = Scheduler(
            limits,
            self.cache,
            StepBudget(shape.step_ms),
            GrammarLoader(compiler),
            VOCABULARY,
            (),
            _NoGrammars(),
            host_pages=shape.pages if role == "decode" else 0,
            asks_prefill=role == "decode",
        )
        self._to_store: list[Message] = []
        self._cost = cost
        self._planned: deque[StepPlan] = deque()
        self._running: StepPlan | None = None
        self._elapsed_s = 0.0  # how long the running step takes
        self._numbers: dict[int, int] = {}  # by slot: the number of its request, which is its seed
        self._meter = StepMeter()

        if is_watched:
            self.scheduler.handle(WatchReplica(CLIENT), Now())

    @property
    def usage(self) -> Usage:
        computed = self.scheduler.stats().prompt_tokens_computed
        prefilled = computed if self.role == "prefill" else 0
        return Usage(self._busy_s, self._used_page_s / self.cache.num_pages, prefilled)

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def submit(self, message: SchedulerInbox, now: float) -> Sequence[Message]:
        """Takes a request, or an answer of the page store. Returns messages to the client."""
        return self._turn((message,), now)

    def take_messages_to_store(self) -> Sequence[Message]:
        """Returns the messages to the page store since the last call: in a decode replica what it fetches, in
        a prefill replica what it saves, and after that the answers to the requests of `PREFILL_CLIENT`."""
        messages, self._to_store = self._to_store, []
        return messages

    @property
    def has_planned(self) -> bool:
        """Whether a step is planned that has not begun."""
        return bool(self._planned)

    def begin_step(self, slowdown: float = 1.0) -> float:
        """Begins the next planned step. Returns its seconds.

        slowdown: factor of the step's time
        """
        self._running = plan = self._planned.popleft()
        for setup in plan.setups:
            self._numbers[setup.slot] = setup.sampling.seed
        work = self._meter.measure(plan, [row.samples for row in plan.rows])
        self._elapsed_s = self._cost(work) * slowdown / 1e3
        self._busy_s += self._elapsed_s
        self._used_page_s += (self.cache.num_pages - self.cache.available()) * self._elapsed_s
        return self._elapsed_s

    def end_step(self, now: float) -> Sequence[Message]:
        """Ends the running step. Returns messages to the client."""
        plan, self._running = self._running, None
        assert plan is not None, "a step is running"
        counts = [row.samples for row in plan.rows]
        tokens = [MAX_BLOCK_ID + 1 + self._numbers[row.slot] for row in plan.rows if row.samples]
        states = _pack([-1] * len(tokens))
        result = StepResult(plan.step, _pack(counts), _pack(tokens), states, self._elapsed_s * 1e3)
        return self._turn((result,), now)

    def _turn(self, messages: Sequence[SchedulerInbox], now: float) -> Sequence[Message]:
        outgoing = self.scheduler.turn(messages, Now(now, now))
        self._planned += [message for message in outgoing.to_model if isinstance(message, StepPlan)]
        if self.role != "both":
            self._to_store += [message for message in outgoing.to_model if isinstance(message, SavePages)]
            self._to_store += [*outgoing.to_store, *outgoing.to_clients.get(PREFILL_CLIENT, ())]
        return outgoing.to_clients.get(CLIENT, ())


def _pack(numbers: Sequence[int]) -> bytes:
    return np.array(numbers, np.int32).tobytes()
