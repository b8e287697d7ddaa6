"""Inputs of a model that makes vectors of them. The fake model's vector of an input is its tokens."""

from __future__ import annotations

import pytest
from arbora.runtime.messages import Abort, Pooling, RowError
from fake_model import pack
from hypothesis import given
from hypothesis import strategies as st
from scheduler_bench import SchedulerBench, settled


def pooling(takes_whole: bool) -> Pooling:
    return Pooling(4, True, reads_cache=not takes_whole, takes_whole=takes_whole)


def vector(bench: SchedulerBench, name: str) -> bytes | None:
    (output,) = bench.outputs[name]
    assert not output.tokens and output.finish == "length"
    return output.vector


@given(
    takes_whole=st.booleans(),
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    chunk=st.integers(16, 64),
)
def test_each_input_gets_the_vector_of_all_its_tokens(
    takes_whole: bool, lengths: list[int], chunk: int
) -> None:
    bench = SchedulerBench(pooling=pooling(takes_whole), budget=settled(0.0, 1.0, step_ms=chunk / 7), slots=4)
    prompts = [[1 + (at * 7 + i) % 60 for i in range(length)] for at, length in enumerate(lengths)]
    for at, prompt in enumerate(prompts):
        bench.submit(f"r-{at}", prompt, max_tokens=0, namespace=None if takes_whole else "")
    most = 0
    while bench.plan() or bench.model.plans:
        rows = bench.model.plans[-1].rows
        if takes_whole:
            assert all(row.start == 0 and row.pools for row in rows)
            most = max(most, len(rows))
        bench.step()
    assert [vector(bench, f"r-{at}") for at in range(len(prompts))] == [pack(prompt) for prompt in prompts]
    assert bench.scheduler.idle


def test_inputs_that_share_a_beginning_compute_it_once() -> None:
    bench = SchedulerBench(pooling=pooling(False))
    beginning = list(range(1, 41))
    for name, end in (("a", 50), ("b", 51)):
        bench.submit(name, [*beginning, end], max_tokens=0)
        bench.run()
    assert bench.outputs["b"][0].cached_tokens == 40
    assert vector(bench, "b") == pack([*beginning, 51])


def test_an_input_beside_others_fills_the_budget_but_a_long_one_is_alone() -> None:
    bench = SchedulerBench(pooling=pooling(True), budget=settled(0.0, 1.0, step_ms=64 / 7))
    for name, length in (("a", 30), ("b", 30), ("c", 30), ("d", 100), ("e", 2)):
        bench.submit(name, [1] * length, max_tokens=0, namespace=None)
    steps = []
    while bench.plan() or bench.model.plans:
        steps.append([len(row.tokens) // 4 for row in bench.model.plans[-1].rows])
        bench.step()
    assert steps == [[30, 30], [30], [100], [2]]


def test_the_second_text_of_a_pair_reaches_the_model() -> None:
    from arbora.runtime.messages import Generate
    from arbora.runtime.sampling_params import SamplingParams

    bench = SchedulerBench(pooling=pooling(True))
    bench.handle(Generate("a", 0, pack([1, 2, 3, 4]), SamplingParams(max_tokens=0), namespace=None, second=2))
    bench.plan()
    assert [row.second for row in bench.model.plans[0].rows] == [2]
    bench.run()


def test_an_abort_ends_an_input_whose_step_runs() -> None:
    bench = SchedulerBench(pooling=pooling(True))
    bench.submit("a", [1, 2], max_tokens=0, namespace=None)
    bench.plan()
    bench.handle(Abort("a"))
    bench.run()
    assert not bench.outputs["a"] and bench.scheduler.idle and bench.scheduler.stats().pages_used == 0


@pytest.mark.parametrize("takes_whole", [True, False])
def test_a_vector_that_is_not_a_number_is_an_error_of_its_input_alone(takes_whole: bool) -> None:
    bench = SchedulerBench(pooling=pooling(takes_whole))
    for name in "ab":
        bench.submit(name, [1, 2, 3], max_tokens=0, namespace=None)
    bench.plan()
    result = bench.model.run_step()
    broken = result.vectors.pop(0).slot
    result.errors.append(RowError(broken, "not_a_number", "no vector"))
    bench.handle(result)
    (failed,), (good,) = bench.outputs["a"], bench.outputs["b"]
    assert failed.finish == "error" and failed.error is not None and failed.error.message == "no vector"
    assert good.vector == pack([1, 2, 3])
