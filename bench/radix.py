"""Cost of the prefix cache on the scheduler's path, in microseconds for each request.

A full cache of documents (1,500 tokens) with ten questions (200 tokens) each, in trees of several sizes.
Run: PYTHONSAFEPATH=1 python bench/radix.py
"""

from __future__ import annotations

import argparse
import random
import time
from array import array
from itertools import pairwise
from statistics import median

from arbora.radix_cache import PrefixCache

PAGE_SIZE = 16
DOCUMENT = 1_500
QUESTION = 200
QUESTIONS_PER_DOCUMENT = 10
VOCABULARY = 128_000
SAMPLES = 300


def random_tokens(generator: random.Random, count: int) -> bytes:
    return array("i", (generator.randrange(VOCABULARY) for _ in range(count))).tobytes()


def serve(cache: PrefixCache, tokens: bytes) -> list[float]:
    """One request computed in one chunk; microseconds of match + lock, allocate, commit, release."""
    length = len(tokens) // 4
    times = [time.perf_counter_ns()]
    lease = cache.acquire("", tokens, length - 1)
    times.append(time.perf_counter_ns())
    fresh = cache.allocate(-(-length // PAGE_SIZE) - len(lease.pages))
    times.append(time.perf_counter_ns())
    assert fresh is not None
    pages = [*lease.pages, *fresh]
    cache.commit(lease, tokens, pages)
    times.append(time.perf_counter_ns())
    if lease.copy is not None:
        cache.copied(lease)
    cache.release(lease, tokens, pages)
    times.append(time.perf_counter_ns())
    return [(end - start) / 1_000 for start, end in pairwise(times)]


def fill(generator: random.Random, prompts: int) -> tuple[PrefixCache, list[bytes]]:
    """A cache with as many pages as its prompts need."""
    documents = [random_tokens(generator, DOCUMENT) for _ in range(prompts // QUESTIONS_PER_DOCUMENT)]
    served = [
        document + random_tokens(generator, QUESTION) for document in documents * QUESTIONS_PER_DOCUMENT
    ]
    pages = len(documents) * -(-DOCUMENT // PAGE_SIZE) + prompts * -(-QUESTION // PAGE_SIZE)
    cache = PrefixCache(pages, PAGE_SIZE)
    for tokens in served:
        serve(cache, tokens)
    return cache, served


def measure(prompts: int) -> None:
    generator = random.Random(prompts)
    cache, served = fill(generator, prompts)
    known = generator.choices(served, k=SAMPLES)
    cases = {
        "known": known,
        "new question": [tokens[: DOCUMENT * 4] + random_tokens(generator, QUESTION) for tokens in known],
        "unknown": [random_tokens(generator, DOCUMENT + QUESTION) for _ in range(SAMPLES)],
    }
    for case, inputs in cases.items():
        samples = [serve(cache, tokens) for tokens in inputs]
        parts = "".join(f"{median(part):9.1f}" for part in zip(*samples, strict=True))
        print(f"{prompts:8,}  {case:14}{parts}{median(map(sum, samples)):9.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--prompts", type=int, nargs="+", default=[100, 1_000, 10_000], help="in the tree")
    arguments = parser.parse_args()
    print(" prompts  request           match allocate   commit  release      all")
    for prompts in arguments.prompts:
        measure(prompts)


if __name__ == "__main__":
    main()
