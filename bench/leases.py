"""Measures what leases gain: agents that wait for tools, in the real scheduler with a simulated model.

Each agent has a system prompt of its own. It replies with a tool call, waits for the result (lognormal times,
by tool), and goes on with a longer prompt. Meanwhile readers ask about documents that nobody reads again, so
the documents push the agents' conversations out of the cache. A step takes --base-ms plus --token-ms for each
token. Prints the share of prompt tokens found in the cache and the time to first token, in simulated seconds.
Run: PYTHONSAFEPATH=1 python bench/leases.py
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from array import array
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path

import numpy as np
from arbora.grammars import GrammarCompiler
from arbora.radix_cache import PrefixCache
from arbora.runtime.messages import AwaitTools, Generate, LeaseTerms, Outputs, StepPlan, StepResult
from arbora.runtime.sampling_params import SamplingParams
from arbora.runtime.scheduler.budget import StepBudget
from arbora.runtime.scheduler.grammar_loader import GrammarLoader
from arbora.runtime.scheduler.refusals import Limits
from arbora.runtime.scheduler.scheduler import Now, Scheduler
from arbora.runtime.vocabulary import build_vocabulary

sys.path.append(str(Path(__file__).parent))
from scheduler_sim import NoGrammars

PAGE = 16  # tokens
SYSTEM, RESULT, REPLY, TURNS = 2_000, 400, 120, 12  # tokens, tokens, tokens, number
TOOLS = {"search": 4.0, "build": 45.0, "ask_a_person": 180.0}  # median seconds
SPREAD = 0.6  # sigma of the logarithm
DOCUMENT = 8_000  # tokens
HEADER = "readers/s  leases    agents: hit %  TTFT p50    p90   readers: TTFT p50    p90   broken  seconds"


@dataclass
class Agent:
    number: int
    tokens: list[int]
    tool: str
    turn: int = 0


@dataclass
class World:
    """Time is in seconds. Events are (time, order, agent); a reader has no agent."""

    scheduler: Scheduler
    chance: random.Random
    base_s: float
    token_s: float
    leased: bool
    now: float = 0.0
    events: list[tuple[float, int, Agent | None]] = field(default_factory=list)
    sent: dict[str, tuple[float, Agent | None]] = field(default_factory=dict)
    waits: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})  # by: is an agent
    prompt_tokens: int = 0  # of agents
    cached_tokens: int = 0
    fresh: int = 0  # the last token id

    @property
    def moment(self) -> Now:
        return Now(self.now, self.now)

    def new_tokens(self, count: int) -> list[int]:
        self.fresh += count
        return list(range(self.fresh - count, self.fresh))

    def later(self, at: float, agent: Agent | None) -> None:
        self.fresh += 1
        heappush(self.events, (at, self.fresh, agent))

    def run(self) -> None:
        plans: deque[StepPlan] = deque()
        while self.events or not self.scheduler.idle:
            while self.events and self.events[0][0] <= self.now:
                self.send(heappop(self.events)[2])
            outgoing = self.scheduler.turn((), self.moment)
            plans += [message for message in outgoing.to_model if isinstance(message, StepPlan)]
            if plans:
                self.run_step(plans.popleft())
            elif self.events:
                self.now = max(self.now, self.events[0][0])

    def send(self, agent: Agent | None) -> None:
        tokens = self.new_tokens(DOCUMENT) if agent is None else agent.tokens
        name = f"r{len(self.sent)}"
        self.sent[name] = self.now, agent
        leases = [LeaseTerms("tool_pause", 2.0)] if agent is not None and self.leased else []
        sampling = SamplingParams(max_tokens=REPLY)
        prompt = array("i", tokens).tobytes()
        self.scheduler.handle(Generate(name, 0, prompt, sampling, leases=leases), self.moment)

    def run_step(self, plan: StepPlan) -> None:
        tokens = sum(max(1, len(row.tokens) // 4) for row in plan.rows)
        elapsed = self.base_s + self.token_s * tokens
        self.now += elapsed
        counts = np.array([row.samples for row in plan.rows], np.int32)
        states = np.full(counts.sum(), -1, np.int32).tobytes()
        ids = np.arange(counts.sum(), dtype=np.int32).tobytes()
        result = StepResult(plan.step, counts.tobytes(), ids, states, 1000 * elapsed)
        self.scheduler.handle(result, self.moment)
        for message in self.scheduler.take_outgoing().to_clients.get(0, []):
            for output in message.items if isinstance(message, Outputs) else ():
                self.take(output.request, output.tokens, output.cached_tokens, output.finish is not None)

    def take(self, name: str, tokens: bytes, cached: int | None, is_over: bool) -> None:
        at, agent = self.sent[name]
        if cached is not None:
            self.waits[agent is not None].append(self.now - at)
            if agent is not None:
                self.prompt_tokens += len(agent.tokens)
                self.cached_tokens += cached
        if agent is None:
            return
        agent.tokens = [*agent.tokens, *array("i", tokens)]
        if not is_over:
            return
        agent.turn += 1
        self.scheduler.handle(AwaitTools(name, [agent.tool]), self.moment)
        if agent.turn < TURNS:
            pause = math.exp(self.chance.gauss(math.log(TOOLS[agent.tool]), SPREAD))
            agent.tokens += self.new_tokens(RESULT)
            self.later(self.now + pause, agent)


def measure(given: argparse.Namespace, readers_per_s: float, *, leased: bool) -> None:
    limits = Limits(
        max_model_len=1 << 17,
        slots=64,
        max_waiting=1 << 16,
        max_pinned=given.pages // 2,
    )
    compiler = GrammarCompiler(build_vocabulary([b"a"], [False], ()), 1)
    scheduler = Scheduler(
        limits,
        PrefixCache(given.pages, PAGE),
        StepBudget(step_ms=60.0),
        GrammarLoader(compiler),
        vocab_size=32,
        eos_tokens=(),
        tokenizer=NoGrammars(),
    )
    chance = random.Random(given.seed)
    world = World(scheduler, chance, given.base_ms / 1000, given.token_ms / 1000, leased)
    for number in range(given.agents):
        agent = Agent(number, world.new_tokens(SYSTEM), list(TOOLS)[number % len(TOOLS)])
        world.later(chance.uniform(0, 60), agent)
    at = 0.0
    while readers_per_s and at < given.seconds:
        at += chance.expovariate(readers_per_s)
        world.later(at, None)
    world.run()
    agents = np.percentile(world.waits[True], [50, 90])
    readers = np.percentile(world.waits[False] or [0.0], [50, 90])
    print(
        f"{readers_per_s:9.2f}  {'yes' if leased else 'no':6}"
        f"{100 * world.cached_tokens / world.prompt_tokens:17.1f}{agents[0]:10.2f}{agents[1]:7.2f}"
        f"{readers[0]:20.2f}{readers[1]:7.2f}{scheduler.stats().broken_leases:9}{world.now:9.0f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pages", type=int, default=8_000, help=f"of {PAGE} tokens")
    parser.add_argument("--agents", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=900.0, help="during which readers come")
    parser.add_argument("--base-ms", type=float, default=8.0)
    parser.add_argument("--token-ms", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(HEADER)
    for readers_per_s in (0.1, 0.3, 0.6):
        for leased in (False, True):
            measure(given, readers_per_s, leased=leased)


if __name__ == "__main__":
    main()
