"""A scheduler with a fake model, driven by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from arbora.grammars import Automaton, CompilerError, ForcedText, GrammarError
from arbora.radix_cache import PrefixCache, Reach
from arbora.runtime.grammar_spec import GrammarKind
from arbora.runtime.messages import (
    Accepted,
    AdapterChanged,
    AdapterList,
    CacheAnswer,
    CacheControl,
    CacheReport,
    CheckPin,
    Drain,
    Generate,
    GrammarSpec,
    GroupCost,
    LeaseTerms,
    Output,
    Outputs,
    PinPrefix,
    Pooling,
    QueryCache,
    Refused,
    ReplicaReport,
    SchedulerInbox,
)
from arbora.runtime.sampling_params import SamplingParams
from arbora.runtime.scheduler.adapters import AdapterRegistry
from arbora.runtime.scheduler.budget import StepBudget
from arbora.runtime.scheduler.fairness import USUAL_BOUNDS, Bounds
from arbora.runtime.scheduler.grammar_loader import GrammarLoader
from arbora.runtime.scheduler.refusals import Limits
from arbora.runtime.scheduler.results import WaitBudget
from arbora.runtime.scheduler.scheduler import Now, Outgoing, Scheduler
from fake_model import EOS, VOCAB, Automata, FakeModel, pack, unpack

USUAL_GROUPS = GroupCost()


class EvenTokens:
    """A compiler that returns a grammar of even tokens, an automaton, or an error."""

    left_out = ()

    def __init__(self, automaton: Automaton | None = None) -> None:
        self.automaton = automaton
        self.waiting: dict[str, str] = {}
        self.ready: list[str] = []

    def submit(self, ticket: str, spec: GrammarSpec, **_: object) -> None:
        self.waiting[ticket] = spec.text

    def cancel(self, ticket: str) -> None:
        self.waiting.pop(ticket, None)

    def finish_all(self) -> None:
        self.ready = list(self.waiting)

    def finished(self) -> list[tuple[str, object]]:
        done = [(ticket, self.waiting.pop(ticket)) for ticket in self.ready if ticket in self.waiting]
        self.ready = []
        answers: dict[str, object] = {"bad": GrammarError("no"), "fault": CompilerError("a trace")}
        answers["automaton"] = self.automaton
        answers |= {text: self.copy(text) for _, text in done if text.startswith("copy")}
        return [(ticket, answers.get(text, self)) for ticket, text in done]

    def copy(self, key: str) -> Automaton:
        """The automaton under another name."""
        assert self.automaton is not None
        return replace(self.automaton, key=key)

    def spelled(self, tokens: np.ndarray) -> bytes:
        """The token's own number; the end token has no bytes."""
        return bytes(token for token in tokens.tolist() if token != EOS)

    def matcher(self) -> EvenTokens:
        return self

    def is_ready(self, within_s: float) -> bool:
        return True

    def forced_text(self) -> ForcedText:
        return ForcedText(b"", b"", False)

    def begin(self, token: int) -> None:
        """`consume` returns the answer."""

    def append(self, tokens: list[int]) -> None:
        """The mask is the same after any text."""

    def consume(self, token: int) -> str | None:
        return None if token % 2 == 0 else f"token {token} is odd"

    def fill_mask(self, mask: np.ndarray) -> None:
        mask[:] = np.packbits(np.arange(VOCAB) % 2 == 0, bitorder="little").view(np.int32)


def settled(base_ms: float, token_ms: float, step_ms: float = 300.0) -> StepBudget:
    """A budget after many steps on a machine of this speed."""
    budget = StepBudget(step_ms)
    for _ in range(60):
        budget.observe(0, base_ms)
        budget.observe(64, base_ms + 64 * token_ms)
    return budget


class ByteTokens:
    """Token i is byte i, as the automata's rows of the fake model have it."""

    def __init__(self, jumps: bool) -> None:
        self._jumps = jumps

    def sure_tokens(self, forced: ForcedText) -> list[int]:
        return [*forced.text, *([EOS] if forced.ends else [])] if self._jumps else []

    def ending_tokens(self, text: bytes) -> list[int]:
        return list(text)


class SchedulerBench:
    def __init__(
        self,
        num_pages: int = 64,
        page_size: int = 4,
        slots: int = 8,
        max_waiting: int = 100,
        prefix_cache: bool = True,
        max_pinned: int = 0,
        compiler: EvenTokens | None = None,
        automata: Automata | None = None,
        jumps: bool = False,
        bounds: Bounds = USUAL_BOUNDS,
        most_stored: int = 0,
        budget: StepBudget | None = None,
        host_pages: int | None = None,
        write_through: bool = False,
        keys: int = 0,
        wait_budget: WaitBudget | None = None,
        group_cost: GroupCost = USUAL_GROUPS,
        max_sampled: int = 1,
        count: Callable[[int], int] = lambda most: most,
        pooling: Pooling | None = None,
        adapters: AdapterRegistry | None = None,
        states: int = 0,
        state_tokens: int = 0,
        windows: Sequence[tuple[Reach, int]] = (),
    ) -> None:
        """count: see `FakeModel`. states: places for recurrent states; windows: see `PrefixCache`"""
        self.compiler = compiler or EvenTokens()
        self.cache = PrefixCache(
            num_pages,
            page_size,
            enabled=prefix_cache,
            check_invariants=True,
            model=b"fake" if most_stored else b"",
            states=states,
            slots=slots,
            windows=windows,
        )
        self.budget = budget or StepBudget(step_ms=8.0)
        self.scheduler = Scheduler(
            Limits(
                max_model_len=1000,
                slots=slots,
                max_sampled=max_sampled,
                state_tokens=state_tokens,
                max_waiting=max_waiting,
                max_pinned=max_pinned,
                keys=keys,
                group_cost=group_cost,
                pooling=pooling,
            ),
            self.cache,
            self.budget,
            GrammarLoader(self.compiler),  # type: ignore[arg-type]
            VOCAB,
            (EOS,),
            ByteTokens(jumps),
            bounds,
            host_pages=most_stored if host_pages is None else host_pages,
            write_through=write_through,
            wait_budget=wait_budget,
            adapters=adapters,
        )
        self.model = FakeModel(num_pages, page_size, automata, most_stored, count, windows)
        self.accepted: set[str] = set()
        self.refused: dict[str, Refused] = {}
        self.outputs: dict[str, list[Output]] = defaultdict(list)
        self.answers: list[CacheAnswer] = []
        self.told: list[AdapterList | AdapterChanged] = []
        self.reports: dict[int, list[ReplicaReport]] = defaultdict(list)
        self.now = 0.0

    def submit(
        self,
        name: str,
        prompt: list[int],
        max_tokens: int = 8,
        grammar: str | None = None,
        client: int = 0,
        namespace: str | None = "",
        tenant: str = "",
        priority: int = 0,
        leases: Sequence[LeaseTerms] = (),
        is_streamed: bool = True,
        kind: GrammarKind = "regex",
        output: Sequence[int] = (),
        uncached: int = 0,
        saved_from: int | None = None,
        **sampling: object,
    ) -> None:
        spec = GrammarSpec(kind, grammar, "regex") if grammar is not None else None
        params = SamplingParams(max_tokens=max_tokens, **sampling)  # type: ignore[arg-type]
        self.handle(
            Generate(
                name,
                client,
                pack(prompt),
                params,
                spec,
                namespace,
                priority,
                tenant,
                leases=list(leases),
                is_streamed=is_streamed,
                uncached=uncached,
                output=pack(list(output)),
                saved_from=saved_from,
            )
        )

    def handle(self, message: SchedulerInbox) -> None:
        self.scheduler.handle(message, Now(self.now, self.now))
        self.deliver()

    def update(self) -> None:
        self.scheduler.update(Now(self.now, self.now))
        self.deliver()

    def drain(self) -> None:
        self.handle(Drain())
        self.update()

    def control(self, message: CacheControl) -> CacheAnswer:
        self.handle(message)
        while not self.answers:
            if self.model.store.forgotten:
                self.handle(self.model.store.forgotten.pop())
            else:
                self.step()  # drops and explanations wait until ended requests are released
        return self.answers.pop()

    def pin(
        self, tokens: list[int], ttl_s: float = 60.0, name: str = "p", namespace: str = "", scope: str = ""
    ) -> CacheAnswer:
        return self.control(PinPrefix(0, 1, name, scope, namespace, pack(tokens), ttl_s))

    def check_pin(self, tokens: list[int], namespace: str = "", scope: str = "") -> CacheAnswer:
        return self.control(CheckPin(0, 1, scope, namespace, pack(tokens)))

    def report(self, scope: str = "", own: str = "") -> CacheReport:
        answer = self.control(QueryCache(0, 1, scope, own))
        assert isinstance(answer, CacheReport)
        return answer

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.update()

    def plan(self) -> bool:
        planned = self.scheduler.plan(Now(self.now, self.now))
        self.deliver()
        return planned

    def step(self) -> None:
        """The model process finishes its oldest step."""
        self.handle(self.model.run_step())

    def answer_fetches(self, rounds: int = 10) -> None:
        """The page store answers all questions, also those that follow from an answer."""
        for _ in range(rounds):
            for answer in self.model.store.answer():
                self.handle(answer)
            self.update()

    def run(self, steps: int = 1000) -> None:
        """Runs until nothing is left to do, one step ahead as in the process."""
        for _ in range(steps):
            if self.model.store.asked:
                self.answer_fetches()
            self._deliver(self.scheduler.turn((), Now(self.now, self.now)))
            if self.model.plans:
                self.step()
            elif not self.model.store.asked:
                return

    def deliver(self) -> None:
        self._deliver(self.scheduler.take_outgoing())

    def _deliver(self, outgoing: Outgoing) -> None:
        self.model.receive(outgoing.to_model)
        self.model.store.asked += outgoing.to_store
        for client, messages in outgoing.to_clients.items():
            for message in messages:
                if isinstance(message, Accepted):
                    self.accepted.add(message.request)
                elif isinstance(message, Refused):
                    self.refused[message.request] = message
                elif isinstance(message, Outputs):
                    for output in message.items:
                        self.outputs[output.request].append(output)
                elif isinstance(message, AdapterList | AdapterChanged):
                    self.told.append(message)
                elif isinstance(message, ReplicaReport):
                    self.reports[client].append(message)
                elif isinstance(message, CacheAnswer):
                    self.answers.append(message)

    def tokens(self, name: str) -> list[int]:
        return [token for output in self.outputs[name] for token in unpack(output.tokens)]

    def finish(self, name: str) -> str | None:
        return self.outputs[name][-1].finish if self.outputs[name] else None

    def cached(self, name: str) -> int | None:
        return self.outputs[name][0].cached_tokens
