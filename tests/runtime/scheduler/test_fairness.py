"""Fair shares, priorities and shared prefixes, from the queue to the steps that are planned."""

from __future__ import annotations

from arbora.runtime.messages import Abort
from arbora.runtime.scheduler.fairness import LOOK_AHEAD, Bounds
from fake_model import long_reply_prompt, reply_alone
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_bench import SchedulerBench

PAGE = 4
BLOCK = 8 * PAGE
PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=8)


def prompt_of(path: list[int], name: int) -> list[int]:
    """A block for each step of the path, then a unique token: equal paths share whole pages."""
    blocks = [1 + (7 * depth + 13 * step + i) % 50 for depth, step in enumerate(path) for i in range(BLOCK)]
    return [*blocks, 51 + name]


def distinct_tokens(paths: list[list[int]]) -> int:
    nodes = {tuple(path[:depth]) for path in paths for depth in range(1, len(path) + 1)}
    return len(nodes) * BLOCK + len(paths)


def computed(bench: SchedulerBench) -> int:
    return bench.scheduler.stats().prompt_tokens_computed


@given(
    paths=st.lists(PATHS, min_size=1, max_size=8),
    tenants=st.lists(st.sampled_from("ab"), min_size=8, max_size=8),
    pauses=st.lists(st.integers(0, 3), min_size=8, max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_every_shared_prefix_is_computed_once(
    paths: list[list[int]], tenants: list[str], pauses: list[int]
) -> None:
    bench = SchedulerBench(num_pages=1000, page_size=PAGE)
    for name, path in enumerate(paths):
        bench.submit(str(name), prompt_of(path, name), max_tokens=1, tenant=tenants[name])
        bench.run(steps=pauses[name])
    bench.run()
    assert computed(bench) == distinct_tokens(paths)
    for name, path in enumerate(paths):
        assert bench.tokens(str(name)) == reply_alone(prompt_of(path, name), 1)


@given(paths=st.lists(PATHS, min_size=2, max_size=8), steps=st.integers(0, 6), planned=st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_cancelled_requests_prefix_is_continued_from_its_last_chunk(
    paths: list[list[int]], steps: int, planned: bool
) -> None:
    bench = SchedulerBench(num_pages=1000, page_size=PAGE)
    for name, path in enumerate(paths):
        bench.submit(str(name), prompt_of(path, name), max_tokens=1)
    bench.run(steps=steps)
    if planned:
        bench.plan()
    bench.handle(Abort("0"))
    bench.run()
    assert distinct_tokens(paths[1:]) <= computed(bench) <= distinct_tokens(paths)
    assert bench.scheduler.idle


def test_a_retracted_requests_prefix_is_continued_from_its_last_chunk() -> None:
    bench = SchedulerBench(num_pages=186, page_size=PAGE)
    bench.submit("old", [1, 2, 3], max_tokens=150, ignore_eos=True, priority=-1)
    bench.run(steps=64)
    document = [1 + i % 50 for i in range(664)]
    bench.submit("leads", [*document, 51], max_tokens=1)
    bench.submit("waits", [*document, 52], max_tokens=1)
    bench.run()
    stats = bench.scheduler.stats()
    assert stats.retractions == 1
    assert computed(bench) <= 3 + 664 + 2 + stats.evicted_pages * PAGE
    assert bench.tokens("waits") == reply_alone([*document, 52], 1)


def test_requests_that_share_nothing_are_not_delayed_by_many_that_share_a_prefix() -> None:
    bench = SchedulerBench(num_pages=2000, page_size=PAGE, slots=200, max_waiting=200)
    bench.run()
    document = [1 + i % 50 for i in range(200)]
    for name in range(LOOK_AHEAD + 20):
        bench.submit(str(name), [*document, name % 50], max_tokens=1, priority=0)
    bench.submit("other", [60, 61], max_tokens=4, priority=0)
    bench.run(steps=3)
    assert bench.tokens("other")


@given(
    lengths=st.lists(st.integers(1, 200), min_size=3, max_size=20),
    tenants=st.lists(st.sampled_from("abc"), min_size=20, max_size=20),
    priorities=st.lists(st.integers(0, 1), min_size=20, max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_a_step_is_full_while_a_request_waits_that_could_start(
    lengths: list[int], tenants: list[str], priorities: list[int]
) -> None:
    bench = SchedulerBench(num_pages=4000, page_size=PAGE, slots=40, prefix_cache=False)
    for name, length in enumerate(lengths):
        bench.submit(
            str(name), [1 + name] * length, max_tokens=3, tenant=tenants[name], priority=priorities[name]
        )
    while bench.plan() or bench.model.plans:
        rows = bench.model.plans[-1].rows
        decoding = sum(not row.tokens for row in rows)
        planned = sum(len(row.tokens) // 4 for row in rows)
        if bench.scheduler.stats().waiting:
            assert planned >= bench.budget.prefill_tokens(decoding, decoding > 0)
        bench.step()
    assert all(bench.finish(str(name)) for name in range(len(lengths)))


def test_a_flooding_tenant_delays_others_by_one_step_at_most() -> None:
    bench = SchedulerBench(num_pages=4000, page_size=PAGE, bounds=Bounds(ahead=100))
    for name in range(20):
        bench.submit(f"flood {name}", long_reply_prompt(600, 1, salt=name), max_tokens=1, tenant="flood")
    bench.run(steps=2)
    bench.submit("chat", long_reply_prompt(20, 1, salt=70), max_tokens=1, tenant="chat")
    bench.run(steps=3)
    assert bench.finish("chat") == "length"
    assert sum(bench.finish(f"flood {name}") is not None for name in range(20)) == 0


def test_an_interactive_prompt_is_computed_before_the_rest_of_a_batch_prompt() -> None:
    bench = SchedulerBench(num_pages=4000, page_size=PAGE)
    bench.submit("batch", long_reply_prompt(900, 1), max_tokens=1, priority=1)
    bench.run(steps=2)
    bench.submit("interactive", long_reply_prompt(20, 1, salt=7), max_tokens=1)
    bench.run(steps=3)
    assert bench.finish("interactive") == "length"
    assert bench.finish("batch") is None


def test_a_running_batch_prompt_is_preempted_a_bounded_number_of_times() -> None:
    bench = SchedulerBench(num_pages=4000, page_size=PAGE)
    bench.submit("batch", long_reply_prompt(900, 1), max_tokens=1, priority=1)
    bench.run(steps=2)
    served = 0
    while bench.finish("batch") is None:
        bench.submit(f"{served}", long_reply_prompt(200, 1, salt=served), max_tokens=1)
        bench.submit(f"{served}'", long_reply_prompt(200, 1, salt=served + 1), max_tokens=1)
        bench.run(steps=1)
        served += 1
        assert served < 120


def answer_among_rivals(bench: SchedulerBench, name: str, steps: int) -> None:
    """Runs until the request is answered, in fewer than `steps` steps, while another tenant's keep coming."""
    for step in range(steps):
        if bench.finish(name) is not None:
            return
        bench.submit(f"{step}", long_reply_prompt(200, 1, salt=step), max_tokens=1, tenant="b")
        bench.run(steps=1)
    raise AssertionError(f"{name} was not answered within {steps} steps")


def test_a_batch_prompt_is_computed_as_soon_as_an_interactive_one_that_shares_it_waits() -> None:
    bench = SchedulerBench(num_pages=4000, page_size=PAGE)
    shared = long_reply_prompt(800, 1)
    bench.submit("batch", [*shared, 5, 5], max_tokens=1, priority=1)
    bench.run(steps=1)
    bench.submit("interactive", [*shared, 7, 7], max_tokens=1, tenant="a")
    answer_among_rivals(bench, "interactive", steps=30)


def test_an_inherited_rank_for_more_tokens_is_kept_beside_a_better_one_for_less() -> None:
    bench = SchedulerBench(num_pages=4000, page_size=PAGE)
    shared = long_reply_prompt(800, 1)
    bench.submit("batch", [*shared, 5, 5], max_tokens=1, priority=1)
    bench.run(steps=1)
    bench.submit("interactive", [*shared, 7, 7], max_tokens=1, tenant="a")
    bench.run(steps=1)
    bench.submit("urgent", [*shared[:400], 9, 9], max_tokens=1, tenant="c", priority=-1)
    answer_among_rivals(bench, "interactive", steps=30)
