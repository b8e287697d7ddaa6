"""Measures what the prefix cache costs the scheduler: microseconds for each request, bytes for each node.

Caches are in the state that they reach after a long time: full, so that each new page evicts one, and with a
full history in the policy. First come trees of several sizes (documents of 1,500 tokens with questions of one
page below), then prompts of several lengths in a tree of about 2,000 prompts; figures are means of the middle
half of 200 requests. Last come the chats and document questions of `lib/radix_mix.py`, with the mean and the
99th percentile of 4,000 requests.
`--nodes 1000000` takes minutes.
Run: PYTHONSAFEPATH=1 python bench/radix.py
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice, pairwise
from multiprocessing import get_context
from pathlib import Path
from resource import getpagesize
from statistics import fmean, quantiles
from typing import NamedTuple

from arbora.radix_cache import EvictionPolicy, GittinsPolicy, PrefixCache

sys.path += [str(Path(__file__).parent / "lib"), str(Path(__file__).parents[1] / "tests" / "support")]
from least_recently_used import LeastRecentlyUsed
from radix_mix import Mix

PAGE = 16  # tokens
DOCUMENT = 94 * PAGE
QUESTIONS = 1_000  # of each document
LENGTHS = (100, 1_700, 10_000, 100_000)
SAMPLES = 200
MIX_PAGES = 25_000
MIX_BEFORE = 24_000  # requests until the policy's history is full
MIX_SAMPLES = 4_000
POLICIES: dict[str, Callable[[int], EvictionPolicy]] = {
    "LRU": lambda pages: LeastRecentlyUsed(),
    "learned": lambda pages: GittinsPolicy(pages, PAGE),
}


class Times(NamedTuple):
    """The microseconds of one request that is computed in one chunk.

    `evict` is the time to free pages for the prompt and the answer.
    """

    match: float
    lock: float
    evict: float
    insert: float
    release: float


def random_tokens(generator: random.Random, count: int) -> bytes:
    return generator.randbytes(4 * count)


def serve(cache: PrefixCache, prompt: bytes, answer: bytes = b"", generated: int = 100) -> Times:
    tokens = prompt + answer
    times = [time.perf_counter_ns()]
    found = cache.match("", prompt, len(prompt) // 4 - 1)
    times.append(time.perf_counter_ns())
    lock = cache.acquire(found)
    times.append(time.perf_counter_ns())
    assert cache.extend(lock, len(tokens) // 4)
    times.append(time.perf_counter_ns())
    cache.commit(lock, prompt)
    times.append(time.perf_counter_ns())
    if lock.copy is not None:
        cache.end_copy(lock)
    cache.release(lock, tokens, generated)
    times.append(time.perf_counter_ns())
    return Times(*((end - start) / 1_000 for start, end in pairwise(times)))


def prompts(generator: random.Random, nodes: int) -> Iterator[bytes]:
    """Prompts, one document after the other, with `nodes` questions in all."""
    for first in range(0, nodes, QUESTIONS):
        document = random_tokens(generator, DOCUMENT)
        for _ in range(min(QUESTIONS, nodes - first)):
            yield document + random_tokens(generator, PAGE)


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()


def needed(times: Times) -> float:
    return times.match + times.evict + times.insert


def row(label: str, figures: Iterable[float]) -> str:
    return f"{label:42}" + "".join(f"{figure:9.1f}" for figure in figures)


def usual(label: str, samples: list[Times]) -> str:
    quarter = len(samples) // 4
    middle = sorted(samples, key=sum)[quarter : len(samples) - quarter]
    means = Times(*map(fmean, zip(*middle, strict=True)))
    return row(label, (*means, needed(means)))


def measure_mix(name: str) -> None:
    """The times of requests in a mix of chats and documents."""
    cache = PrefixCache(MIX_PAGES, PAGE, POLICIES[name](MIX_PAGES))
    requests = Mix(seed=1).requests()
    for asked in islice(requests, MIX_BEFORE):
        serve(cache, asked.prompt, asked.answer, len(asked.answer) // 4)
    samples, asked_for, matched = [], 0, 0
    for asked in islice(requests, MIX_SAMPLES):
        asked_for += len(asked.prompt) // 4
        matched += cache.match("", asked.prompt, len(asked.prompt) // 4 - 1).length
        samples.append(serve(cache, asked.prompt, asked.answer, len(asked.answer) // 4))
    share = matched / asked_for
    columns = list(zip(*((*times, needed(times)) for times in samples), strict=True))
    label = f"{name:8}mix, {asked_for / MIX_SAMPLES:,.0f} tokens, {share:.2f} hit  "
    print(row(label + "mean", map(fmean, columns)))
    print(row(label + "p99", (quantiles(column, n=100)[98] for column in columns)))


def measure_size(name: str, nodes: int) -> None:
    """The times of cached questions, and of new ones about the same documents."""
    pages = nodes + -(-nodes // QUESTIONS) * (DOCUMENT // PAGE)
    before = resident_bytes()
    cache = PrefixCache(pages, PAGE, POLICIES[name](pages))
    for tokens in prompts(random.Random(nodes), nodes):
        serve(cache, tokens)
    used = (resident_bytes() - before) / nodes
    label = f"{name:8}{nodes:10,} nodes{used:7,.0f} bytes each  "
    known = list(islice(prompts(random.Random(nodes), nodes), SAMPLES))
    print(usual(label + "known", [serve(cache, tokens) for tokens in known]))
    generator = random.Random(0)
    asked = [tokens[: 4 * DOCUMENT] + random_tokens(generator, PAGE) for tokens in known]
    print(usual(label + "new page", [serve(cache, tokens) for tokens in asked]))


def measure_length(name: str, length: int) -> None:
    """The times of prompts of one length, cached and new, in a tree of 2,000 prompts of several lengths."""
    generator = random.Random(length)
    lengths = [length if k % 100 == 0 else 200 for k in range(2_000)]
    pages = sum(-(-tokens // PAGE) for tokens in lengths)
    policy = POLICIES[name](pages)
    cache = PrefixCache(pages, PAGE, policy)
    for _ in range(policy.history // pages + 1):
        served = [random_tokens(generator, tokens) for tokens in lengths]
        for tokens in served:
            serve(cache, tokens)
    label = f"{name:8}{length:10,} tokens                "
    print(usual(label + "known", [serve(cache, served[100 * (k % 20)]) for k in range(SAMPLES)]))
    unknown = [random_tokens(generator, length) for _ in range(20 if length > 10_000 else SAMPLES)]
    print(usual(label + "unknown", [serve(cache, tokens) for tokens in unknown]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1_000, 10_000], help="in the tree")
    arguments = parser.parse_args()
    print(f"{'':42}" + "".join(f"{field:>9}" for field in (*Times._fields, "m+e+i")), flush=True)
    for name in POLICIES:
        for nodes in arguments.nodes:  # in new processes, because freed memory would otherwise be reused
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                process.submit(measure_size, name, nodes).result()
        for length in LENGTHS:
            measure_length(name, length)
        measure_mix(name)


if __name__ == "__main__":
    main()
