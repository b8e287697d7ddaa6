"""What drafts would gain on a strong model's answers, with the time of real steps of any model.

    PYTHONSAFEPATH=1 python bench/draft_replay.py build/0.6b --tokenizer FILE.gguf -- --quantize int4

The right answers to requests of several kinds are replayed: the server's drafter and controller choose the
drafts of each step, and those that agree with the answer are kept. Each step is run by MODEL with as many
drafts, and its time is taken; the tokens that MODEL samples are not used. Steps without drafts are run
between the requests. Printed are the tokens of a step, and the time of the steps without drafts divided by
that of the steps with them. What follows `--` are options of `arbora serve`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).parent / "lib"))
from arbora.frontend.core.text.tokenizer import Tokenizer
from arbora.frontend.launch.child_process import replica_commands
from arbora.frontend.model_files.model_source import find_model
from arbora.runtime.config import AUTO_DRAFTS
from arbora.runtime.messages import SlotEnd, SlotSetup
from arbora.runtime.model.drafts import DraftController, SuffixDrafter
from arbora.runtime.sampling_params import SamplingParams
from model_steps import Steps
from repeating_requests import KINDS, Asked
from reports import table

PLAIN_STEPS = 10
"""steps without drafts before each request"""


class Replayed(NamedTuple):
    tokens: int
    steps: int
    milliseconds: float


class Replay:
    """A slot whose tokens are given. The drafter keeps what earlier requests have said."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._drafter, self._controller = SuffixDrafter(1), DraftController(1)

    def run(self, prompt: np.ndarray, answer: np.ndarray) -> Replayed:
        """Replays a request. The step of its prompt samples the first token, and is not measured."""
        params = SamplingParams(max_tokens=len(answer), temperature=0.0)
        self._drafter.set_up(SlotSetup(0, params, context=prompt.tobytes(), namespace=""))
        self._controller.start(0)
        self._add(answer[:1])
        known, count, total = 1, 0, 0.0
        while known < len(answer):
            took, kept = self._step(answer[known:])
            self._add(answer[known : known + kept])
            known, count, total = known + kept, count + 1, total + took
        self._drafter.end(SlotEnd(0, len(prompt) + len(answer)))
        return Replayed(len(answer) - 1, count, total)

    def _step(self, following: np.ndarray) -> tuple[float, int]:
        """Returns the milliseconds of a step, and how many tokens it adds."""
        most = min(AUTO_DRAFTS, len(following) - 1)
        proposed = self._drafter.propose(np.zeros(1, np.int32), np.array([most], np.int32))
        chosen = self._controller.choose(proposed, 1, 1) if len(proposed.tokens) else None
        drafts = 0 if chosen is None else int(chosen.counts[0])
        took = self._steps.run(1, 0, drafts)
        self._controller.costs.observe(1 + drafts, drafts, took)
        wrong = np.flatnonzero(proposed.tokens[:drafts] != following[:drafts])
        kept = 1 + (int(wrong[0]) if len(wrong) else drafts)
        if len(proposed.tokens):
            self._controller.learn(proposed, np.array([kept], np.int32), following[:kept])
        return took, kept

    def _add(self, tokens: np.ndarray) -> None:
        self._drafter.add(np.zeros(len(tokens), np.int32), tokens)


def tokens_of(tokenizer: Tokenizer, text: str) -> np.ndarray:
    return np.frombuffer(tokenizer.encode(text, add_special_tokens=False), np.int32)


def prompt_of(asked: Asked) -> str:
    return "\n".join(f"{message['role']}: {message['content']}" for message in asked.body["messages"])


def measure(steps: Steps, tokenizer: Tokenizer, kind: str, requests: int) -> list[object]:
    """A line of the table."""
    replay, replayed, plain = Replay(steps), list[Replayed](), list[float]()
    for number in range(requests):
        asked = KINDS[kind](number)
        steps.choose_adapters(0)
        plain += [steps.run(1, 0) for _ in range(PLAIN_STEPS)][2:]
        found = replay.run(tokens_of(tokenizer, prompt_of(asked)), tokens_of(tokenizer, asked.answer))
        if number:
            replayed.append(found)  # in the first request, programs are recorded
    tokens, count, total = map(sum, zip(*replayed, strict=True))
    return [kind, tokens, f"{tokens / count:.2f}", f"{tokens * statistics.median(plain) / total:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="the model whose steps are timed")
    parser.add_argument("--tokenizer", help="a model whose tokenizer reads the texts (default: MODEL)")
    parser.add_argument("--requests", type=int, default=13, help="of each kind; the first is not counted")
    parser.add_argument("--keys", type=int, default=400, help="tokens before the steps that are timed")
    with_answers = [kind for kind, write in KINDS.items() if write(0).answer]
    parser.add_argument("--kinds", nargs="+", choices=with_answers, default=with_answers)
    given = sys.argv[1:]
    split = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:split])
    defaults = replica_commands().model.defaults
    if not defaults.keys() <= os.environ.keys():  # OpenMP and malloc read them when a process starts
        os.execve(sys.executable, [sys.executable, "-P", *sys.argv], {**defaults, **os.environ})
    serve = [options.model, "--speculate", str(AUTO_DRAFTS), *given[split + 1 :]]
    steps = Steps(serve, 1, options.keys)
    tokenizer = Tokenizer.load(find_model(options.tokenizer or options.model))
    lines = [measure(steps, tokenizer, kind, options.requests) for kind in options.kinds]
    print(table(["kind", "tokens", "tokens a step", "speed with drafts ÷ without"], lines))


if __name__ == "__main__":
    main()
