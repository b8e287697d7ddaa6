"""The pages that requests leave in the cache: none if they opt out, the computed ones if they end early."""

from __future__ import annotations

import pytest
from arbora.runtime.messages import (
    Abort,
    RowError,
)
from fake_model import long_reply_prompt, reply_alone
from scheduler_bench import SchedulerBench

DOCUMENT = list(range(1, 41))  # ten pages


def served(bench: SchedulerBench, prompt: list[int], name: str = "warm", namespace: str | None = "") -> None:
    bench.submit(name, prompt, max_tokens=1, namespace=namespace)
    bench.run()


def test_a_request_that_opts_out_neither_reads_nor_leaves_anything() -> None:
    bench = SchedulerBench()
    served(bench, DOCUMENT)
    before = bench.report()
    prompt = [*DOCUMENT, 3]
    bench.submit("private", prompt, namespace=None)
    bench.run()
    assert bench.cached("private") == 0
    assert bench.tokens("private") == reply_alone(prompt, 8)
    assert bench.report().namespaces == before.namespaces
    assert bench.report().pages_free == before.pages_free


def test_requests_that_opt_out_do_not_wait_for_each_other() -> None:
    bench = SchedulerBench()
    for name in ("a", "b"):
        bench.submit(name, DOCUMENT, namespace=None)
    bench.plan()
    assert bench.scheduler.stats().running == 2


def test_a_request_that_opts_out_loses_nothing_when_it_is_retracted() -> None:
    bench = SchedulerBench(num_pages=16, slots=2)
    first, second = long_reply_prompt(6, 40), long_reply_prompt(7, 40)
    bench.submit("a", first, max_tokens=40, namespace=None)
    bench.submit("b", second, max_tokens=40, namespace=None)
    bench.run()
    assert bench.scheduler.stats().retractions > 0
    assert bench.tokens("a") == reply_alone(first, 40)
    assert bench.tokens("b") == reply_alone(second, 40)
    assert bench.report().pages_free == 16


# Requests that end early


def test_a_cancelled_prompt_keeps_the_chunks_that_were_computed() -> None:
    bench = SchedulerBench(num_pages=200)
    prompt = [1 + i % 50 for i in range(400)]
    bench.submit("a", prompt)
    bench.submit("stream", long_reply_prompt(4, 8))
    bench.plan()
    bench.plan()
    bench.step()
    computed = bench.scheduler.stats().prompt_tokens_computed
    bench.handle(Abort("a"))
    bench.run()
    bench.submit("again", prompt, max_tokens=1)
    bench.run()
    assert 16 <= (bench.cached("again") or 0) <= computed
    assert (bench.cached("again") or 0) >= computed - 4 - 4


def test_a_cancelled_reply_keeps_its_generated_tokens_in_the_tree() -> None:
    bench = SchedulerBench()
    prompt = long_reply_prompt(10, 30)
    bench.submit("a", prompt, max_tokens=30)
    bench.run(steps=13)
    bench.handle(Abort("a"))
    bench.run()
    bench.submit("again", [*prompt, *reply_alone(prompt, 30)], max_tokens=1)
    bench.run()
    assert (bench.cached("again") or 0) >= 10 + 12


@pytest.mark.parametrize(("kind", "kept"), [("nothing_allowed", 12), ("mask_late", 12), ("not_a_number", 0)])
def test_a_failed_reply_keeps_its_pages_unless_they_hold_invalid_numbers(kind: str, kept: int) -> None:
    bench = SchedulerBench()
    prompt = long_reply_prompt(12, 8)
    bench.submit("a", prompt)
    bench.plan()
    result = bench.model.run_step()
    result.errors = [RowError(0, kind, "it went wrong")]  # type: ignore[arg-type]
    bench.handle(result)
    bench.run()
    assert bench.finish("a") == "error"
    bench.submit("again", [*prompt, 3], max_tokens=1)
    bench.run()
    assert bench.cached("again") == kept


def test_pages_with_invalid_numbers_stay_invalid_if_the_next_step_fails() -> None:
    bench = SchedulerBench()
    prompt = long_reply_prompt(12, 8)
    bench.submit("a", prompt)
    assert bench.plan() and bench.plan()
    for kind in ("not_a_number", "nothing_allowed"):
        result = bench.model.run_step()
        result.errors = [RowError(0, kind, "it went wrong")]
        bench.handle(result)
    bench.submit("again", [*prompt, 3], max_tokens=1)
    bench.run()
    assert bench.cached("again") == 0
