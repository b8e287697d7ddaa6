"""A scheduler and a loaded model in this process: requests of tokens, without sockets, text and grammars."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arbora.radix_cache import PrefixCache, Reach
from arbora.runtime.messages import Generate, Output, Outputs, Refused, StepPlan, StepResult
from arbora.runtime.model.loading import load_model
from arbora.runtime.sampling_params import SamplingParams
from arbora.runtime.scheduler.budget import StepBudget
from arbora.runtime.scheduler.grammar_loader import GrammarLoader
from arbora.runtime.scheduler.refusals import Limits
from arbora.runtime.scheduler.scheduler import Now, Scheduler
from fake_model import pack, unpack
from scheduler_bench import ByteTokens, EvenTokens
from step_driver import no_masks, no_vocabulary, serve_config


class ServedModel:
    """Two steps are in flight, as in the server."""

    def __init__(self, model: Path, has_groups: bool = True, **fields: Any) -> None:
        """`has_groups`: whether the scheduler frees windowed pages; `fields` are of `ServeConfig`."""
        self._runner, self.ready, _ = load_model(serve_config(model, **fields), no_vocabulary)
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
            Limits(max_model_len=ready.max_model_len, slots=ready.slots, max_waiting=1000),
            self.cache,
            StepBudget(step_ms=20.0),
            GrammarLoader(EvenTokens()),  # type: ignore[arg-type]
            ready.vocab_size,
            (),
            ByteTokens(False),
        )
        self._outputs: dict[str, list[Output]] = defaultdict(list)
        self.refused: dict[str, Refused] = {}

    def submit(self, name: str, prompt: Sequence[int], max_tokens: int, **sampling: Any) -> None:
        params = SamplingParams(max_tokens=max_tokens, **{"temperature": 0.0, **sampling})
        self.scheduler.handle(Generate(name, 0, pack(list(prompt)), params, None, ""), Now())

    def run(self) -> None:
        """Runs until all requests have ended."""
        plans: deque[StepPlan] = deque()
        results: list[StepResult] = []
        while True:
            outgoing = self.scheduler.turn(results, Now())
            plans += [message for message in outgoing.to_model if isinstance(message, StepPlan)]
            for message in (each for messages in outgoing.to_clients.values() for each in messages):
                if isinstance(message, Refused):
                    self.refused[message.request] = message
                elif isinstance(message, Outputs):
                    for output in message.items:
                        self._outputs[output.request].append(output)
            if not plans:
                return
            results = [self._runner.run(plans.popleft(), no_masks)]

    def tokens(self, name: str) -> list[int]:
        return [token for output in self._outputs[name] for token in unpack(output.tokens)]

    def reply(self, name: str, prompt: Sequence[int], max_tokens: int) -> list[int]:
        self.submit(name, prompt, max_tokens)
        self.run()
        return self.tokens(name)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens of all requests that were found in the cache."""
        return self.scheduler.stats().prompt_tokens_cached
