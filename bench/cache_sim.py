"""Replays a trace of prompts through the prefix cache; prints the share of blocks that each policy hits.

A block of the trace is a page of two tokens, both of which are the block's id; a last block that is not full
is one token. The cache learns the lengths of outputs but does not store them. Belady's policy knows the
future and may evict any block, even one with blocks below it, so its share is an upper bound. Without
--trace, generated traces are replayed: those of lib/traces.py are scaled to the cache, those of
lib/service_traces.py are not.
Run: PYTHONSAFEPATH=1 python bench/cache_sim.py --trace FILE --blocks 1000 4000 16000
"""

from __future__ import annotations

import argparse
import json
import sys
from array import array
from collections.abc import Callable, Iterable
from functools import partial
from heapq import heappop, heappush
from pathlib import Path

from arbora.radix_cache import EvictionPolicy, GittinsPolicy, PrefixCache

sys.path += [str(Path(__file__).parent / "lib"), str(Path(__file__).parents[1] / "tests" / "support")]
from least_recently_used import LeastRecentlyUsed
from service_traces import SERVICES
from traces import KINDS, Request, Trace, generate, read_trace

NEVER = 1 << 60
PAGE = 2  # tokens
TOKEN_BYTES = 4
HEADER = "trace              blocks    LRU   ours  Belady  gap closed"


def replay(trace: Trace, blocks: int, policy: EvictionPolicy) -> float:
    """The share of blocks that are in a cache of `blocks` when their prompt arrives."""
    cache = PrefixCache(blocks, PAGE, policy)
    hits = 0
    for request in trace:
        tokens = _tokens(request)
        lock = cache.acquire(cache.match("", tokens, len(tokens) // TOKEN_BYTES))
        pages = min(len(request.prompt), len(lock.pages) + cache.available())
        assert cache.extend(lock, PAGE * pages)
        hits += -(-lock.matched // PAGE)
        computed = tokens[: PAGE * TOKEN_BYTES * pages]
        cache.commit(lock, computed)
        if lock.copy is not None:
            cache.end_copy(lock)
        cache.release(lock, computed, request.generated)
    return hits / sum(len(request.prompt) for request in trace)


def _tokens(request: Request) -> bytes:
    tokens = [block for block in request.prompt for _ in range(PAGE)]
    return array("i", tokens[:-1] if request.partial else tokens).tobytes()


def belady(trace: Trace, blocks: int) -> float:
    """The same share if the evicted block is always the one whose next use is latest."""
    accesses = [block for request in trace for block in request.prompt]
    following = _next_uses(accesses)
    cached: dict[int, int] = {}
    latest: list[tuple[int, int]] = []
    hits = 0
    for block, following_use in zip(accesses, following, strict=True):
        hits += block in cached
        if block not in cached and len(cached) >= blocks:
            del cached[_latest(latest, cached)]
        cached[block] = following_use
        heappush(latest, (-following_use, block))
    return hits / len(accesses)


def _next_uses(accesses: list[int]) -> list[int]:
    following = [NEVER] * len(accesses)
    seen: dict[int, int] = {}
    for position, block in reversed(list(enumerate(accesses))):
        following[position] = seen.get(block, NEVER)
        seen[block] = position
    return following


def _latest(latest: list[tuple[int, int]], cached: dict[int, int]) -> int:
    while True:
        use, block = heappop(latest)
        if cached.get(block) == -use:
            return block


def compare(trace: Trace, blocks: int) -> dict[str, float]:
    return {
        "blocks": blocks,
        "lru": replay(trace, blocks, LeastRecentlyUsed()),
        "ours": replay(trace, blocks, GittinsPolicy(blocks, PAGE)),
        "belady": belady(trace, blocks),
    }


def line(name: str, row: dict[str, float]) -> str:
    gap = row["belady"] - row["lru"]
    closed = f"{(row['ours'] - row['lru']) / gap:10.0%}" if gap > 0.001 else f"{'-':>10}"
    shares = f"{row['lru']:7.1%}{row['ours']:7.1%}{row['belady']:8.1%}"
    return f"{name:16}{row['blocks']:9,}{shares}{closed}"


def trace_of(name: str, blocks: int) -> Trace:
    return SERVICES[name]() if name in SERVICES else generate(name, blocks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*KINDS, *SERVICES], help="generated traces; all of them")
    parser.add_argument("--trace", type=Path, help="JSON lines with `hash_ids`, instead of generated ones")
    parser.add_argument("--blocks", type=int, nargs="+", default=[1_000], help="size of the cache")
    parser.add_argument("--json", action="store_true", help="print a list of objects instead of a table")
    arguments = parser.parse_args()
    sources: Iterable[tuple[str, Callable[[int], Trace]]]
    if arguments.trace:
        trace = read_trace(arguments.trace)
        sources = [(arguments.trace.stem[:15], lambda blocks: trace)]
    else:
        sources = [(name, partial(trace_of, name)) for name in arguments.names]
    rows = []
    if not arguments.json:
        print(HEADER)
    for name, trace_for in sources:
        for blocks in arguments.blocks:
            rows.append(compare(trace_for(blocks), blocks))
            if not arguments.json:
                print(line(name, rows[-1]), flush=True)
    if arguments.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
