"""Replays a trace of prompts through the prefix cache: the share of blocks that each order of eviction hits.

A page is a block and a token is its id. Outputs are not entered, but their lengths are told, as in a server.
Belady's order knows the future and may evict any block, also one that others hang below: a bound that no
cache of prefixes reaches. Without --trace, all generated traces (bench/traces.py) are replayed.
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

from arbora.radix_cache import EvictionPolicy, LeastRecentlyUsed, PrefixCache, ReuseRate

sys.path.append(str(Path(__file__).parent))
from traces import KINDS, Trace, generate, read_trace

NEVER = 1 << 60
HEADER = "trace              blocks    LRU   ours  Belady  gap closed"


def replay(trace: Trace, blocks: int, policy: EvictionPolicy) -> float:
    """The share of blocks that were in a cache of `blocks` when their prompt came."""
    cache = PrefixCache(blocks, 1, policy)
    for prompt, generated in trace:
        tokens = array("i", prompt).tobytes()
        lease = cache.acquire("", tokens, len(prompt))
        fresh = cache.allocate(min(len(prompt) - lease.matched, cache.available()))
        assert fresh is not None
        pages = [*lease.pages, *fresh]
        cache.commit(lease, tokens[: 4 * len(pages)], pages)
        cache.release(lease, tokens[: 4 * len(pages)], pages, generated)
    stats = cache.stats()
    return stats.matched_tokens / stats.looked_up_tokens


def belady(trace: Trace, blocks: int) -> float:
    """The same share when the block that is asked for last is evicted, wherever it stands."""
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
        "ours": replay(trace, blocks, ReuseRate(blocks, 1)),
        "belady": belady(trace, blocks),
    }


def line(name: str, row: dict[str, float]) -> str:
    gap = row["belady"] - row["lru"]
    closed = f"{(row['ours'] - row['lru']) / gap:10.0%}" if gap > 0.001 else f"{'-':>10}"
    shares = f"{row['lru']:7.1%}{row['ours']:7.1%}{row['belady']:8.1%}"
    return f"{name:16}{row['blocks']:9,}{shares}{closed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--trace", type=Path, help="JSON lines with `hash_ids`")
    parser.add_argument("--blocks", type=int, nargs="+", default=[1_000], help="size of the cache")
    parser.add_argument("--json", action="store_true", help="print a list of objects instead of a table")
    arguments = parser.parse_args()
    sources: Iterable[tuple[str, Callable[[int], Trace]]]
    if arguments.trace:
        trace = read_trace(arguments.trace)
        sources = [(arguments.trace.stem[:15], lambda blocks: trace)]
    else:
        sources = [(kind, partial(generate, kind)) for kind in KINDS]
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
