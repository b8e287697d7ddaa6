"""Prompts that were computed and evicted, for a scheduler that joins a page store."""

from __future__ import annotations

from typing import Any

from arbora.runtime.scheduler.budget import StepBudget
from fake_model import long_reply_prompt
from scheduler_bench import SchedulerBench

PROMPT = long_reply_prompt(40, 20)
LONG = long_reply_prompt(900, 20)
BIG = long_reply_prompt(996, 4, salt=5)


class FewRestored(StepBudget):
    """A prefix is restored over many steps."""

    def restored_tokens(self, decode_rows: int, streams_text: bool) -> int:
        return 8


def evict_all(bench: SchedulerBench) -> None:
    """Runs a request that needs every page."""
    pages = bench.cache.stats().total
    big = long_reply_prompt(pages * bench.cache.page_size - 4, 4, salt=5)
    bench.submit("big", big, max_tokens=1, namespace="big")
    bench.run()
    assert bench.cache.match("", b"".join(t.to_bytes(4, "little") for t in PROMPT)).length == 0


def with_evicted_prompt(**fields: Any) -> SchedulerBench:
    bench = SchedulerBench(num_pages=16, page_size=4, most_stored=1000, **fields)
    bench.submit("first", PROMPT, max_tokens=4)
    bench.run()
    evict_all(bench)
    return bench


def with_long_evicted_prompt() -> SchedulerBench:
    bench = SchedulerBench(num_pages=250, page_size=4, most_stored=1000)
    bench.submit("first", LONG, max_tokens=1)
    bench.run()
    bench.submit("big", BIG, max_tokens=1, namespace="big")
    bench.run()
    return bench
