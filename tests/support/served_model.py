"""A scheduler and a loaded model in this process: requests of tokens, without sockets, text and grammars."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arbora.radix_cache import PrefixCache, Reach
from arbora.runtime.messages import (
    ForgetReplies,
    Generate,
    Message,
    Output,
    Outputs,
    Refused,
    SchedulerInbox,
    StepPlan,
    StepResult,
)
from arbora.runtime.sampling_params import SamplingParams
from arbora.runtime.scheduler.adapters import AdapterRegistry
from arbora.runtime.scheduler.budget import StepBudget
from arbora.runtime.scheduler.grammar_loader import GrammarLoader
from arbora.runtime.scheduler.refusals import Limits
from arbora.runtime.scheduler.scheduler import Now, Scheduler
from fake_model import pack, unpack
from ranked_model import load_ranks
from scheduler_bench import ByteTokens, EvenTokens
from step_driver import no_masks, serve_config


class ServedModel:
    """Two steps are in flight, as in the server."""

    def __init__(
        self, model: Path, has_groups: bool = True, in_process_group: bool = False, **fields: Any
    ) -> None:
        """`has_groups`: whether the scheduler frees windowed pages; `in_process_group`: see `load_ranks`;
        `fields` are of `ServeConfig`."""
        self.runner, self.ready = load_ranks(serve_config(model, **fields), in_process_group)
        ready = self.ready
        self.cache = PrefixCache(
            ready.num_pages,
            ready.page_size,
            check_invariants=True,
            windows=[
                (Reach(group.reach if has_groups else 1 << 30, group.in_chunks), group.num_pages)
                for group in ready.groups
                if group.reach is not None
            ],
        )
        self.scheduler = Scheduler(
            Limits(
                max_model_len=ready.max_model_len,
                slots=ready.slots,
                max_waiting=1000,
                max_sampled=ready.max_sampled,
            ),
            self.cache,
            StepBudget(step_ms=20.0),
            GrammarLoader(EvenTokens()),  # type: ignore[arg-type]
            ready.vocab_size,
            (),
            ByteTokens(False),
            adapters=AdapterRegistry(ready.adapters, ready.adapter_places),
        )
        self._to_model: deque[Message] = deque()
        self._results: list[StepResult] = []
        self.outputs: dict[str, list[Output]] = defaultdict(list)
        self.refused: dict[str, Refused] = {}

    def submit(
        self,
        name: str,
        prompt: Sequence[int],
        max_tokens: int,
        namespace: str | None = "",
        prediction: Sequence[int] = (),
        adapter: str = "",
        **sampling: Any,
    ) -> None:
        """adapter: a digest of those in `ready.adapters`; empty: the base model"""
        params = SamplingParams(max_tokens=max_tokens, **{"temperature": 0.0, **sampling})
        expected = pack(list(prediction))
        tokens = pack(list(prompt))
        self.handle(Generate(name, 0, tokens, params, None, namespace, prediction=expected, adapter=adapter))

    def handle(self, message: SchedulerInbox) -> None:
        self.scheduler.handle(message, Now())

    def run(self, steps: int = 1 << 30) -> None:
        """Runs until all requests have ended, or for so many steps."""
        for _ in range(steps):
            outgoing = self.scheduler.turn(self._results, Now())
            self._to_model += outgoing.to_model
            for message in (each for messages in outgoing.to_clients.values() for each in messages):
                if isinstance(message, Refused):
                    self.refused[message.request] = message
                elif isinstance(message, Outputs):
                    for output in message.items:
                        self.outputs[output.request].append(output)
            plan = self._next_plan()
            if plan is None:
                return
            self._results = [self.runner.run(plan, no_masks)]

    def _next_plan(self) -> StepPlan | None:
        """The oldest plan, once the messages before it are carried out; None if there is none."""
        while self._to_model:
            message = self._to_model.popleft()
            if isinstance(message, StepPlan):
                return message
            if isinstance(message, ForgetReplies):
                self.runner.forget_replies(message)
        self._results = []
        return None

    def tokens(self, name: str) -> list[int]:
        return [token for output in self.outputs[name] for token in unpack(output.tokens)]

    def reply(self, name: str, prompt: Sequence[int], max_tokens: int) -> list[int]:
        self.submit(name, prompt, max_tokens)
        self.run()
        return self.tokens(name)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens of all requests that were found in the cache."""
        return self.scheduler.stats().prompt_tokens_cached
