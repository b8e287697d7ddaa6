"""Cost of the prefix cache on the scheduler's path, in microseconds: match, insert, evict.

A document is shared by many requests, each with its own question: trees of various sizes, prompts of
1,700 tokens. Run: PYTHONSAFEPATH=1 python bench/radix.py
"""

from __future__ import annotations

import argparse
import random
import time
from array import array
from collections.abc import Callable
from statistics import median

from arbora.radix_cache import PrefixCache

PAGE_SIZE = 16
PROMPT = 1_700
VOCABULARY = 128_000


def random_tokens(generator: random.Random, count: int) -> bytes:
    return array("i", (generator.randrange(VOCABULARY) for _ in range(count))).tobytes()


def serve(cache: PrefixCache, tokens: bytes) -> None:
    """One request in one chunk: match, allocate, commit, release."""
    length = len(tokens) // 4
    lease = cache.acquire("", tokens, length - 1)
    fresh = cache.allocate(-(-length // PAGE_SIZE) - len(lease.pages))
    assert fresh is not None
    pages = [*lease.pages, *fresh]
    cache.commit(lease, tokens, pages)
    if lease.copy is not None:
        cache.copied(lease)
    cache.release(lease, tokens, pages)


def fill(generator: random.Random, prompts: int) -> tuple[PrefixCache, list[bytes]]:
    """A cache that is full: documents of 1,500 tokens, ten questions of 200 for each."""
    documents = [random_tokens(generator, 1_500) for _ in range(max(prompts // 10, 1))]
    served = [documents[i % len(documents)] + random_tokens(generator, 200) for i in range(prompts)]
    pages = len(documents) * 94 + prompts * 13
    cache = PrefixCache(pages, PAGE_SIZE)
    for tokens in served:
        serve(cache, tokens)
    return cache, served


def microseconds(operation: Callable[[bytes], object], inputs: list[bytes]) -> float:
    samples = []
    for tokens in inputs:
        start = time.perf_counter_ns()
        operation(tokens)
        samples.append((time.perf_counter_ns() - start) / 1_000)
    return median(samples)


def measure(prompts: int) -> None:
    generator = random.Random(prompts)
    cache, served = fill(generator, prompts)
    nodes = sum(1 for root in cache._tree.roots.values() for _ in root.subtree())
    known = generator.choices(served, k=300)
    same_document = [tokens[: 1_500 * 4] + random_tokens(generator, 200) for tokens in known]
    unknown = [random_tokens(generator, PROMPT) for _ in range(300)]
    print(
        f"{nodes:7} nodes"
        f" {microseconds(lambda tokens: cache.matched('', tokens), known):8.1f}"
        f" {microseconds(lambda tokens: serve(cache, tokens), known):11.1f}"
        f" {microseconds(lambda tokens: serve(cache, tokens), same_document):11.1f}"
        f" {microseconds(lambda tokens: serve(cache, tokens), unknown):11.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, nargs="+", default=[100, 1_000, 10_000])
    arguments = parser.parse_args()
    print("µs a prompt        match   known: all   a new question   unknown: all (evicts)")
    for prompts in arguments.prompts:
        measure(prompts)


if __name__ == "__main__":
    main()
