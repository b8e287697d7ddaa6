"""Traces of prompts for cache experiments: read from a file, or generated with one character each.

A prompt is a list of block ids. Equal ids mean equal content after an equal prefix, as in the traces that
Mooncake published. Generated traces are scaled to the size of the tested cache; the lengths of their answers
mean nothing.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import accumulate, count
from pathlib import Path
from typing import Any, NamedTuple

Prompt = list[int]


class Request(NamedTuple):
    prompt: Prompt
    generated: int  # tokens
    partial: bool = False  # whether the last block is not full


Trace = list[Request]


def read_trace(path: Path) -> Trace:
    """One request a line of JSON: `hash_ids` and, if given, `output_length` and `input_length`."""
    with path.open() as lines:
        requests = [json.loads(line) for line in lines]
    block = _block_size(requests)
    return [
        Request(
            request["hash_ids"],
            request.get("output_length", 0),
            request.get("input_length", 0) % block > 0,
        )
        for request in requests
    ]


def _block_size(requests: list[dict[str, Any]]) -> int:
    """The smallest power of two that lets each prompt's blocks hold its `input_length` tokens."""
    sizes = [request.get("input_length", 0) / max(len(request["hash_ids"]), 1) for request in requests]
    return 1 << (math.ceil(max(sizes, default=1)) - 1).bit_length()


@dataclass
class Source:
    """Random numbers, fresh block ids, and the scale of a trace: a cache of `blocks`."""

    blocks: int
    seed: int
    random: random.Random = field(init=False)
    ids: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.ids = count()

    def fresh(self, length: float) -> Prompt:
        return [next(self.ids) for _ in range(max(round(length), 1))]

    def length(self, mean: float) -> float:
        """A skewed length: most are short, some are many times the mean."""
        return mean * self.random.lognormvariate(-0.5, 1.0)

    def zipf(self, number: int, exponent: float) -> Callable[[], int]:
        """Draws 0 … `number` - 1, the k-th with a weight of k ** -exponent."""
        weights = list(accumulate((k + 1) ** -exponent for k in range(number)))
        return lambda: self.random.choices(range(number), cum_weights=weights)[0]


def conversations(source: Source) -> Iterator[Prompt]:
    """Chats under a few system prompts: turns build on each other; some chats are long, some pauses too."""
    systems = [source.fresh(2 + k) for k in range(8)]
    system = source.zipf(len(systems), 1.0)
    due: list[tuple[float, Prompt, float]] = []
    for now in count():
        while due and due[0][0] <= now:
            _, prompt, chance = heappop(due)
            yield prompt
            _take_turn(source, due, now, prompt, chance)
        prompt = systems[system()] + source.fresh(source.length(6))
        yield prompt
        _take_turn(source, due, now, prompt, source.random.random())


def _take_turn(
    source: Source, due: list[tuple[float, Prompt, float]], now: int, prompt: Prompt, chance: float
) -> None:
    if source.random.random() < chance:
        pause = source.random.lognormvariate(0.0, 1.5) * source.blocks / 16
        heappush(due, (now + pause, prompt + source.fresh(source.length(3)), chance))


def agents(source: Source) -> Iterator[Prompt]:
    """Long tool prompts of skewed popularity; each task runs a few quick steps and does not return."""
    tools = [source.fresh(source.length(12)) for _ in range(max(source.blocks // 8, 8))]
    tool = source.zipf(len(tools), 1.1)
    running: list[tuple[Prompt, int]] = []
    while True:
        if len(running) < 8:
            task = tools[tool()] + source.fresh(source.length(6))
            running.append((task, source.random.choice([1, 1, 1, 2, 3, 5, 8])))
        prompt, steps = running.pop(source.random.randrange(len(running)))
        yield prompt
        if steps > 1:
            running.append((prompt + source.fresh(1), steps - 1))


def documents(source: Source) -> Iterator[Prompt]:
    """Questions about documents of skewed popularity, mixed with as many prompts that never repeat."""
    library = [source.fresh(source.length(24)) for _ in range(max(source.blocks // 4, 8))]
    document = source.zipf(len(library), 0.8)
    while True:
        yield library[document()] + source.fresh(1)
        yield source.fresh(source.length(6))


def scans(source: Source) -> Iterator[Prompt]:
    """A hot set of half the cache; now and then a batch of new prompts twice as large as the cache."""
    hot = [source.fresh(8) for _ in range(max(source.blocks // 16, 1))]
    while True:
        for _ in range(6 * len(hot)):
            yield source.random.choice(hot)
        for _ in range(source.blocks // 4):
            yield source.fresh(8)


def loop(source: Source) -> Iterator[Prompt]:
    """The same prompts in the same order, together a tenth larger than the cache."""
    prompts = [source.fresh(8) for _ in range(max(source.blocks * 11 // 80, 2))]
    while True:
        yield from prompts


def growing_loops(source: Source) -> Iterator[Prompt]:
    """Loops of half the cache, the whole, then twice the cache: each one misleads a policy that learned the
    last."""
    while True:
        for size in (0.5, 1.0, 2.0):
            prompts = [source.fresh(8) for _ in range(max(round(source.blocks * size / 8), 1))]
            yield from prompts * 5


def shifts(source: Source) -> Iterator[Prompt]:
    """Documents of skewed popularity; which are popular changes over and over."""
    library = [source.fresh(8) for _ in range(max(source.blocks // 2, 2))]
    document = source.zipf(len(library), 1.0)
    while True:
        source.random.shuffle(library)
        for _ in range(len(library) * 2):
            yield library[document()]


def drift(source: Source) -> Iterator[Prompt]:
    """Popularity that moves steadily: each prompt is popular once, then never used again."""
    library = [source.fresh(8) for _ in range(max(source.blocks // 4, 2))]
    while True:
        for position in range(len(library)):
            for _ in range(4):
                offset = int(source.random.expovariate(8 / len(library)))
                yield library[position - offset % len(library)]
            library[position] = source.fresh(8)


def recency(source: Source) -> Iterator[Prompt]:
    """The last used prompts are used next: the case for which LRU is best."""
    stack = [source.fresh(8) for _ in range(max(source.blocks // 2, 2))]
    while True:
        depth = int(len(stack) ** source.random.random())
        prompt = stack.pop(-depth) if source.random.random() < 0.9 else source.fresh(8)
        stack.append(prompt)
        if len(stack) > source.blocks:
            del stack[0]
        yield prompt


def twice(source: Source) -> Iterator[Prompt]:
    """Each prompt is sent exactly twice, so a prompt that was hit has no further value."""
    waiting: list[Prompt] = []
    while True:
        prompt = source.fresh(8)
        yield prompt
        waiting.append(prompt)
        if len(waiting) * 8 > source.blocks:
            yield waiting.pop(int(len(waiting) * source.random.random() ** 2))


def betrayal(source: Source) -> Iterator[Prompt]:
    """A hot set that nearly fills the cache and is then abandoned, and new prompts that are sent twice."""
    while True:
        hot = [source.fresh(8) for _ in range(max(source.blocks // 10, 1))]
        for _ in range(8 * len(hot)):
            yield source.random.choice(hot)
        for _ in range(6):
            pairs = [source.fresh(8) for _ in range(max(source.blocks // 14, 1))]
            yield from pairs * 2


def uniform(source: Source) -> Iterator[Prompt]:
    """Prompts drawn uniformly from twice the cache's size: there is nothing to learn."""
    library = [source.fresh(8) for _ in range(max(source.blocks // 4, 2))]
    while True:
        yield source.random.choice(library)


KINDS: dict[str, Callable[[Source], Iterator[Prompt]]] = {
    kind.__name__: kind
    for kind in (
        conversations,
        agents,
        documents,
        scans,
        loop,
        growing_loops,
        shifts,
        drift,
        recency,
        twice,
        betrayal,
        uniform,
    )
}


def generate(kind: str, blocks: int, seed: int = 0) -> Trace:
    """A trace that fills a cache of `blocks` about thirty times over."""
    trace: Trace = []
    answers = random.Random(seed + 1)
    remaining = 30 * blocks
    for prompt in KINDS[kind](Source(blocks, seed)):
        trace.append(Request(prompt, round(answers.lognormvariate(4.5, 1.0))))
        remaining -= len(prompt)
        if remaining <= 0:
            break
    return trace
