"""Measures GET /cache/tree in the scheduler, in milliseconds: the outline of a tree, and the search for the
tokens of a node that the tree does not have, which visits the most nodes."""

from __future__ import annotations

import argparse
import time
from array import array

from arbora.radix_cache import PrefixCache

PAGE = 16


def grown(conversations: int, turns: int) -> PrefixCache:
    """A tree of conversations, each of some turns, under 20 system prompts."""
    cache = PrefixCache(conversations * turns * 3 + 1000, PAGE)
    for number in range(conversations):
        tokens = [number % 20] * 64
        for turn in range(turns):
            tokens += [number, turn, *range(30)]
            packed = array("i", tokens).tobytes()
            lock = cache.acquire(cache.match("", packed, len(tokens) - 1))
            assert cache.extend(lock, len(tokens))
            if lock.copy:
                cache.end_copy(lock)
            cache.release(lock, packed)
    return cache


def best_ms(runs: int, cache: PrefixCache, page: int | None) -> float:
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        if page is None:
            cache.reports.walk([""]).list_largest(400, 24)
        else:
            cache.reports.walk([""]).read_edge(page, 4096)
        best = min(best, time.perf_counter() - start)
    return best * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    print(f"{'visited':>8} {'listed':>7} {'outline ms':>11} {'node ms':>8}")
    for conversations in (10, 100, 1_000, 5_000):
        cache = grown(conversations, turns=6)
        found = cache.reports.walk([""]).list_largest(1 << 30, 24)  # the visited ones
        listed = len(cache.reports.walk([""]).list_largest(400, 24))
        missing = best_ms(runs, cache, page=1 << 30)
        print(f"{len(found):>8} {listed:>7} {best_ms(runs, cache, None):>11.2f} {missing:>8.2f}")


if __name__ == "__main__":
    main()
