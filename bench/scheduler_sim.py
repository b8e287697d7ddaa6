"""Measures the effect of the order of waiting requests, in the real scheduler with a simulated model.

A step takes --base-ms plus --token-ms for each token. Orders: first come first served, longest match first,
and the server's own. Prints the share of prompt tokens found in the cache, the time to first token in
simulated seconds, and the unfairness: the greatest difference in service between two tenants while both
waited for a first token (in computed tokens; output tokens count twice).
Run: PYTHONSAFEPATH=1 python
bench/scheduler_sim.py [--trace FILE]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
from arbora.grammars import ForcedText, GrammarCompiler
from arbora.radix_cache import PrefixCache
from arbora.runtime.messages import Generate, Outputs, StepPlan, StepResult
from arbora.runtime.sampling_params import SamplingParams
from arbora.runtime.scheduler.budget import StepBudget
from arbora.runtime.scheduler.fairness import OUTPUT_WEIGHT, USUAL_BOUNDS, Bounds
from arbora.runtime.scheduler.grammar_loader import GrammarLoader
from arbora.runtime.scheduler.refusals import Limits
from arbora.runtime.scheduler.scheduler import Now, Scheduler
from arbora.runtime.vocabulary import build_vocabulary

sys.path.append(str(Path(__file__).parent / "lib"))
from sim_workloads import FLOOD_DOCUMENT, Arrival, hostile, trace

ORDERS = {
    "first come": Bounds(overtaken=0, ahead=math.inf),
    "longest match": Bounds(overtaken=math.inf, ahead=math.inf, look_ahead=1 << 20),
    "Arbora's": USUAL_BOUNDS,
}
MAX_LENGTH = 1 << 18
HEADER = "workload      order           group   hit %   TTFT p50    p90      p99   unfairness  steps  seconds"


class NoGrammars:
    """No grammars. It never tokenizes, because no text is forced."""

    def sure_tokens(self, forced: ForcedText) -> Sequence[int]:
        return ()

    def ending_tokens(self, text: bytes) -> Sequence[int] | None:
        return None


@dataclass(frozen=True)
class Machine:
    """A simulated server."""

    base_ms: float
    token_ms: float
    pages: int
    page_size: int
    slots: int

    def scheduler(self, bounds: Bounds) -> Scheduler:
        limits = Limits(
            max_model_len=MAX_LENGTH,
            slots=self.slots,
            max_waiting=1 << 20,
        )
        compiler = GrammarCompiler(build_vocabulary([b"a"], [False], ()), 1)
        return Scheduler(
            limits,
            PrefixCache(self.pages, self.page_size),
            StepBudget(step_ms=50.0),
            GrammarLoader(compiler),
            vocab_size=32,
            eos_tokens=(),
            tokenizer=NoGrammars(),
            bounds=bounds,
        )


@dataclass
class Service:
    """The service of each tenant, and the greatest difference between two tenants while both waited."""

    served: Counter[str] = field(default_factory=Counter)
    waiting: Counter[str] = field(default_factory=Counter)
    unfairness: float = 0.0
    _range: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)

    def observe(self) -> None:
        waiting = sorted(tenant for tenant, requests in self.waiting.items() if requests)
        ranges = {}
        for pair in combinations(waiting, 2):
            lead = self.served[pair[0]] - self.served[pair[1]]
            low, high = self._range.get(pair, (lead, lead))
            ranges[pair] = min(low, lead), max(high, lead)
            self.unfairness = max(self.unfairness, ranges[pair][1] - ranges[pair][0])
        self._range = ranges


class Simulation:
    """Submits requests at their times of arrival, and runs planned steps, two of them in flight."""

    def __init__(self, machine: Machine, arrivals: Sequence[Arrival], bounds: Bounds) -> None:
        self.scheduler = machine.scheduler(bounds)
        self.service = Service()
        self.now_ms = 0.0
        self.first_token_ms: dict[int, float] = {}
        self._machine = machine
        self._arrivals = arrivals
        self._sent = 0
        self._rows: dict[int, int] = {}  # numbers of requests by slot
        self._plans: deque[StepPlan] = deque()

    def run(self) -> None:
        while self._sent < len(self._arrivals) or not self.scheduler.idle:
            self._send_due()
            outgoing = self.scheduler.turn((), Now())
            self._plans += [message for message in outgoing.to_model if isinstance(message, StepPlan)]
            if self._plans:
                self._run_step(self._plans.popleft())
            else:
                self.now_ms = max(self.now_ms, self._arrivals[self._sent].at_ms)

    def _send_due(self) -> None:
        while self._sent < len(self._arrivals) and self._arrivals[self._sent].at_ms <= self.now_ms:
            arrival = self._arrivals[self._sent]
            sampling = SamplingParams(max_tokens=arrival.max_tokens, seed=self._sent)
            request = Generate(str(self._sent), 0, arrival.prompt(), sampling, tenant=arrival.tenant)
            self.scheduler.handle(request, Now())
            self.service.waiting[arrival.tenant] += 1
            self._sent += 1

    def _run_step(self, plan: StepPlan) -> None:
        self._rows |= {setup.slot: setup.sampling.seed for setup in plan.setups}
        tokens = sum(max(1, len(row.tokens) // 4) for row in plan.rows)
        elapsed = self._machine.base_ms + self._machine.token_ms * tokens
        self.now_ms += elapsed
        for row in plan.rows:
            work = len(row.tokens) // 4 + OUTPUT_WEIGHT * row.samples
            self.service.served[self._arrivals[self._rows[row.slot]].tenant] += work
        counts = [row.samples for row in plan.rows]
        sampled = [self._arrivals[self._rows[row.slot]].output_token for row in plan.rows if row.samples]
        states = _packed([-1] * len(sampled))
        result = StepResult(plan.step, _packed(counts), _packed(sampled), states, elapsed)
        self.scheduler.handle(result, Now())
        self._take_replies()
        self.service.observe()

    def _take_replies(self) -> None:
        for message in self.scheduler.take_outgoing().to_clients.get(0, []):
            if not isinstance(message, Outputs):
                continue
            for output in message.items:
                number = int(output.request)
                if output.tokens and number not in self.first_token_ms:
                    self.first_token_ms[number] = self.now_ms
                    self.service.waiting[self._arrivals[number].tenant] -= 1


def _packed(numbers: Sequence[int]) -> bytes:
    return np.array(numbers, np.int32).tobytes()


def report(workload: str, order: str, arrivals: Sequence[Arrival], simulation: Simulation) -> None:
    waits: dict[str, list[float]] = defaultdict(list)
    for number, arrival in enumerate(arrivals):
        waits[arrival.group].append((simulation.first_token_ms[number] - arrival.at_ms) / 1e3)
    stats = simulation.scheduler.stats()
    hits = stats.prompt_tokens_cached / (stats.prompt_tokens_cached + stats.prompt_tokens_computed)
    for group, seconds in sorted(waits.items()):
        p50, p90, p99 = np.percentile(seconds, [50, 90, 99])
        print(
            f"{workload:14}{order:16}{group:6}{100 * hits:7.1f}{p50:11.2f}{p90:7.2f}{p99:9.2f}"
            f"{simulation.service.unfairness:13,.0f}{stats.steps:7}{simulation.now_ms / 1e3:9.1f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trace", type=Path, help="requests in Mooncake's format, replayed too")
    parser.add_argument("--requests", type=int, help="replay only so many of them")
    parser.add_argument("--tenants", type=int, default=8, help="that the trace's conversations are dealt to")
    parser.add_argument("--seed", type=int, default=1, help="of the hostile mix")
    parser.add_argument("--base-ms", type=float, default=8.0)
    parser.add_argument("--token-ms", type=float, default=0.018)
    parser.add_argument("--pages", type=int, default=16_000, help="of 64 tokens")
    parser.add_argument("--slots", type=int, default=64)
    given = parser.parse_args()
    machine = Machine(given.base_ms, given.token_ms, given.pages, 64, given.slots)
    workloads = {"flood": hostile(given.seed, 0), "warm flood": hostile(given.seed, FLOOD_DOCUMENT)}
    if given.trace:
        workloads[given.trace.stem[:13]] = trace(given.trace, given.tenants, given.requests)
    print(HEADER)
    for workload, arrivals in workloads.items():
        for order, bounds in ORDERS.items():
            simulation = Simulation(machine, arrivals, bounds)
            simulation.run()
            report(workload, order, arrivals, simulation)


if __name__ == "__main__":
    main()
