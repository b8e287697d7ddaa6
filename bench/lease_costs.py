"""Measures what leases cost the scheduler, in microseconds; each figure but the last is the best of 7 runs.

Conversations have --tokens tokens, in pages of 16. The first line looks up a prompt among 1,024 pauses for
tools whose prompts are as long. The others are for --leases leased conversations of as many owners: a turn of
one of them, which takes a lease and ends the one before; the number of leased pages, as the metrics ask for
it; and an allocation that breaks leases while requests lock half of the conversations.
Run: PYTHONSAFEPATH=1 python bench/lease_costs.py
"""

from __future__ import annotations

import argparse
import time
from array import array
from collections.abc import Callable

from arbora.radix_cache import Lock, PrefixCache
from arbora.runtime.messages import Generate
from arbora.runtime.sampling_params import SamplingParams
from arbora.runtime.scheduler.request import Request
from arbora.runtime.scheduler.tool_pauses import MAX_AWAITED, ToolPauses

PAGE = 16  # tokens
RUNS = 7


def packed(first: int, count: int) -> bytes:
    return array("i", [first, *range(1, count)]).tobytes()


def best(run: Callable[[], object]) -> float:
    """Microseconds of the fastest of `RUNS` runs."""
    times = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return 1e6 * min(times)


def message(name: str, prompt: bytes) -> Generate:
    return Generate(name, 0, prompt, SamplingParams(max_tokens=1), namespace="", tenant="")


def pauses_us(tokens: int) -> float:
    pauses = ToolPauses()
    for number in range(MAX_AWAITED):
        request = Request.from_message(message(str(number), packed(-number, tokens)), number)
        pauses.begin(request, ["search"], 0.0)
    prompt = message("next", packed(-MAX_AWAITED, tokens) + packed(0, PAGE))
    return best(lambda: pauses.results_come(prompt, 1.0))


class Conversations:
    """Leased conversations that fill a cache."""

    def __init__(self, number: int, tokens: int) -> None:
        self.tokens = tokens
        self.cache = PrefixCache(number * (tokens // PAGE + RUNS + 1), PAGE)
        self.prompts = [packed(-number, tokens) for number in range(number)]
        self.leases = [self.serve(owner, prompt) for owner, prompt in enumerate(self.prompts)]

    def begin(self, prompt: bytes) -> Lock:
        tokens = len(prompt) // 4
        lock = self.cache.acquire(self.cache.match("", prompt, tokens))
        assert self.cache.extend(lock, tokens), "the cache has enough pages for all conversations"
        return lock

    def serve(self, owner: int, prompt: bytes) -> object:
        lock = self.begin(prompt)
        self.cache.release(lock, prompt)
        return self.cache.lease(f"o{owner}", "", prompt, float(owner), len(prompt))

    def turn_us(self) -> float:
        prompt, times = self.prompts[0], []
        for _ in range(RUNS):
            prompt += packed(0, PAGE)
            lock = self.begin(prompt)
            self.cache.release(lock, prompt)
            begun = time.perf_counter()
            lease = self.cache.lease("o0", "", prompt, 0.0, len(prompt))
            self.cache.end_lease(self.leases[0])  # type: ignore[arg-type]
            times.append(time.perf_counter() - begun)
            self.leases[0] = lease
        self.prompts[0] = prompt
        return 1e6 * min(times)

    def num_pages_us(self) -> float:
        return best(lambda: self.cache.leases.num_pages)

    def broken_us(self) -> tuple[float, int]:
        """Of an allocation of one page, and the leases that it breaks, with the first half of them locked."""
        for prompt in self.prompts[: len(self.prompts) // 2]:
            self.begin(prompt)
        lock = self.cache.acquire(self.cache.match(None, b""))
        self.cache.extend(lock, self.cache.stats().free * self.cache.page_size)
        self.cache.leases.take_ended()
        begun = time.perf_counter()
        self.cache.extend(lock, lock.capacity + 1)
        elapsed = time.perf_counter() - begun
        return 1e6 * elapsed, len(self.cache.leases.take_ended())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--leases", type=int, default=64)
    given = parser.parse_args()
    print(f"look-up among {MAX_AWAITED:,} pauses {pauses_us(given.tokens):12,.0f} µs", flush=True)
    conversations = Conversations(given.leases, given.tokens)
    print(f"lease of a turn {conversations.turn_us():28,.0f} µs")
    print(f"number of leased pages {conversations.num_pages_us():21,.1f} µs")
    elapsed, broken = conversations.broken_us()
    print(f"allocation under pressure {elapsed:18,.0f} µs, breaks {broken} leases")


if __name__ == "__main__":
    main()
