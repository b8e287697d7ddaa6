"""Prefixes that requests share: turns, documents, prefixes in flight, groups of rows."""

from __future__ import annotations

from collections.abc import Callable

from arbora.runtime.messages import Abort, RowError, RowGroup, StepPlan
from arbora.runtime.scheduler.budget import StepBudget
from fake_model import long_reply_prompt, reply_alone, unpack
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_bench import SchedulerBench


def test_the_second_turn_starts_where_the_first_ended() -> None:
    bench = SchedulerBench()
    first = long_reply_prompt(21, 10)
    bench.submit("1", first, max_tokens=10)
    bench.run()
    conversation = first + bench.tokens("1")
    bench.submit("2", [*conversation, 5, 6, 7], max_tokens=3)
    bench.run()
    assert bench.cached("2") == len(conversation) - 1
    assert bench.tokens("2") == reply_alone([*conversation, 5, 6, 7], 3)


def test_a_turn_that_arrives_during_the_last_step_of_the_turn_before_finds_all_of_it() -> None:
    bench = SchedulerBench(page_size=16)
    first = long_reply_prompt(21, 12)
    bench.submit("1", first, max_tokens=12)
    bench.run(steps=8)
    bench.plan()
    bench.handle(Abort("1"))  # a stop string was found
    conversation = first + bench.tokens("1")
    bench.submit("2", [*conversation, 5, 6, 7], max_tokens=3)
    bench.run()
    assert bench.cached("2") == len(conversation)
    assert bench.tokens("2") == reply_alone([*conversation, 5, 6, 7], 3)


def test_a_match_that_ends_inside_a_page_is_copied_not_recomputed() -> None:
    bench = SchedulerBench(page_size=16)
    shared = long_reply_prompt(24, 3)
    bench.submit("1", [*shared, 9, 9, 9], max_tokens=3)
    bench.run()
    bench.submit("2", [*shared, 8, 8], max_tokens=3)
    bench.plan()
    assert len(bench.model.plans[0].copies) == 1
    bench.run()
    assert bench.cached("2") == 24
    assert bench.tokens("2") == reply_alone([*shared, 8, 8], 3)


def test_a_request_that_does_not_fit_yet_changes_nothing_in_the_tree() -> None:
    bench = SchedulerBench(num_pages=16, page_size=4)
    first = long_reply_prompt(6, 4)
    bench.submit("1", first, max_tokens=4)
    bench.run()
    bench.submit("big", long_reply_prompt(30, 20, salt=3), max_tokens=20)
    bench.run(steps=2)

    def describe() -> list[object]:
        tree = bench.cache._tree
        nodes = [node for root in tree.roots.values() for node in root.subtree() if not node.locks]
        return [tree.now, *((node, node.hits, node.last_use, node.mark) for node in nodes)]

    before = describe()
    bench.submit("2", [*first, *bench.tokens("1"), *range(1, 21)], max_tokens=3)
    bench.plan()
    assert bench.scheduler.stats().waiting == 1
    assert describe() == before and len(before) > 1
    bench.run()
    assert bench.cached("2") == 9


def test_an_equal_prefix_in_flight_is_computed_once() -> None:
    bench = SchedulerBench(num_pages=256)
    document = long_reply_prompt(200, 2)
    for name in "abcd":
        bench.submit(name, [*document, ord(name) % 60], max_tokens=2)
    bench.run()
    assert bench.scheduler.stats().prompt_tokens_computed < 200 + 4 * 8
    for name in "abcd":
        assert bench.tokens(name) == reply_alone([*document, ord(name) % 60], 2)


def test_the_first_waiting_request_takes_over_when_the_computing_one_is_cancelled() -> None:
    bench = SchedulerBench(num_pages=256)
    document = long_reply_prompt(400, 2)
    bench.submit("a", [*document, 1], max_tokens=2)
    bench.submit("b", [*document, 2], max_tokens=2)
    bench.run(steps=1)
    bench.handle(Abort("a"))
    bench.run()
    assert bench.tokens("b") == reply_alone([*document, 2], 2)
    cached = bench.cached("b")
    assert cached is not None and cached > 0
    assert bench.tokens("a") == []


def test_without_the_prefix_cache_the_same_text_is_computed_again() -> None:
    bench = SchedulerBench(prefix_cache=False)
    prompt = long_reply_prompt(20, 4)
    for name in "ab":
        bench.submit(name, prompt, max_tokens=4)
        bench.run()
    assert bench.cached("b") == 0
    assert bench.tokens("b") == bench.tokens("a") == reply_alone(prompt, 4)


def test_no_request_waits_for_a_prefix_that_is_not_kept() -> None:
    bench = SchedulerBench(prefix_cache=False, num_pages=256)
    for name in "ab":
        bench.submit(name, long_reply_prompt(60, 2), max_tokens=2)
    bench.plan()
    assert bench.scheduler.stats().running == 2


def test_a_request_for_prompt_logprobs_waits_for_no_prefix() -> None:
    bench = SchedulerBench(num_pages=256)
    bench.submit("a", long_reply_prompt(60, 2), max_tokens=2)
    bench.submit("b", long_reply_prompt(60, 2), max_tokens=2, prompt_logprobs=1)
    bench.plan()
    assert bench.scheduler.stats().running == 2


def test_prompt_logprobs_are_asked_for_every_position_of_a_cached_prompt() -> None:
    bench = SchedulerBench(num_pages=256)
    prompt = long_reply_prompt(300, 1)
    bench.submit("a", prompt, max_tokens=1)
    bench.run()
    bench.submit("b", prompt, max_tokens=1, prompt_logprobs=0)
    targets: dict[int, list[int]] = {}
    while bench.plan() or bench.model.plans:
        targets |= {row.start: unpack(row.targets) for row in bench.model.plans[-1].rows if row.tokens}
        bench.step()
    assert [token for start in sorted(targets) for token in targets[start]] == prompt[1:]
    assert bench.cached("b") == 0
    assert bench.tokens("b") == reply_alone(prompt, 1)


@settings(max_examples=60, deadline=None)
@given(
    cached=st.integers(0, 120),
    length=st.integers(2, 120),
    start=st.integers(0, 119),
    page_size=st.sampled_from([1, 4, 16]),
    budget=st.sampled_from([8.0, 24.0, 1000.0]),
    max_tokens=st.integers(0, 2),
)
def test_prompt_logprobs_from_a_start_on_reuse_the_prefix_before_it(
    cached: int, length: int, start: int, page_size: int, budget: float, max_tokens: int
) -> None:
    start = min(start, length - 1)
    bench = SchedulerBench(num_pages=600 // page_size, page_size=page_size, budget=StepBudget(step_ms=budget))
    prompt = long_reply_prompt(120, 2)
    if cached:
        bench.submit("a", prompt[:cached], max_tokens=0)
        bench.run()
    bench.submit("b", prompt[:length], max_tokens, prompt_logprobs=0, prompt_logprobs_start=start)
    targets: list[int] = []
    while bench.plan() or bench.model.plans:
        for row in bench.model.plans[-1].rows:
            if row.targets:
                targets += unpack(row.targets)
                first = row.start + row.untargeted + 1
                assert unpack(row.targets) == prompt[first : first + len(row.targets) // 4]
        bench.step()
    assert targets == prompt[max(start, 1) : length]
    assert bench.cached("b") == min(cached, max(start, 1) - 1)
    assert bench.tokens("b") == reply_alone(prompt[:length], max_tokens)


def test_continuations_that_are_scored_compute_their_prefix_once() -> None:
    bench = SchedulerBench(num_pages=400)
    prefix = long_reply_prompt(300, 2)
    for name in "abcde":
        prompt = [*prefix, ord(name) % 60, 7]
        bench.submit(name, prompt, max_tokens=0, prompt_logprobs=0, prompt_logprobs_start=300)
    bench.run()
    assert bench.scheduler.stats().prompt_tokens_computed == 300 + 2 + 4 * 3
    assert [bench.cached(name) for name in "abcde"] == [0, 299, 299, 299, 299]


def test_a_pinned_prefix_before_the_start_counts_as_the_scored_request_s_own() -> None:
    bench = SchedulerBench(num_pages=24, page_size=4, max_pinned=16)
    document = long_reply_prompt(64, 1)
    bench.submit("a", document, max_tokens=0)
    bench.run()
    bench.pin(document)
    for start in (65, 0):
        name = f"from {start}"
        bench.submit(name, [*document, 5, 6, 7], 0, prompt_logprobs=0, prompt_logprobs_start=start)
        bench.run()
    assert bench.finish("from 65") == "length"
    assert bench.refused.keys() == {"from 0"}


def test_namespaces_share_nothing() -> None:
    bench = SchedulerBench()
    prompt = long_reply_prompt(20, 2)
    for name in "ab":
        bench.submit(name, prompt, max_tokens=2, namespace=name)
        bench.run()
    assert bench.cached("b") == 0


def test_a_request_that_just_fits_is_served_from_a_full_cache() -> None:
    bench = SchedulerBench(num_pages=4, page_size=4)
    for salt in range(3):
        prompt = long_reply_prompt(10, 6, salt)
        bench.submit(str(salt), prompt, max_tokens=6)
        bench.run()
        assert bench.tokens(str(salt)) == reply_alone(prompt, 6)


def test_the_longest_match_goes_first() -> None:
    bench = SchedulerBench(slots=1, num_pages=256)
    warm = long_reply_prompt(16, 1)
    bench.submit("seed", warm, max_tokens=1)
    bench.run()
    bench.submit("running", [7, 7], max_tokens=5)
    bench.plan()
    bench.submit("cold", long_reply_prompt(12, 1, salt=5), max_tokens=1)
    bench.submit("warm", [*warm, 3], max_tokens=1)
    bench.run()
    names = list(bench.outputs)
    assert names.index("warm") < names.index("cold")


def test_pages_of_a_failed_row_are_never_used_again() -> None:
    bench = SchedulerBench()
    prompt = long_reply_prompt(30, 10)
    bench.submit("a", prompt, max_tokens=10)
    bench.run(steps=3)
    result = bench.model.run_step()
    result.errors = [RowError(0, "not_a_number", "the logits are not numbers")]
    bench.handle(result)
    bench.run()
    bench.submit("b", prompt, max_tokens=10)
    bench.run()
    assert bench.cached("b") == 0
    assert bench.tokens("b") == reply_alone(prompt, 10)


def planned_until(bench: SchedulerBench, wanted: Callable[[StepPlan], bool]) -> StepPlan:
    """Plans and runs steps until one is planned as wanted, and returns its plan."""
    for _ in range(40):
        bench.plan()
        for plan in bench.model.plans:
            if wanted(plan):
                return plan
        bench.step()
    raise AssertionError("no step was planned so")


def test_rows_that_share_pages_are_adjacent_as_a_group() -> None:
    bench = SchedulerBench(page_size=16, num_pages=64)
    document = long_reply_prompt(160, 20)
    for tail in (3, 4, 5):
        bench.submit(str(tail), [*document, tail], max_tokens=20)
        bench.submit(f"other{tail}", long_reply_prompt(20, 6, tail), max_tokens=6)
    for _ in range(40):
        bench.run(steps=1)
        bench.plan()
        plan = bench.model.plans[-1]
        if plan.groups and plan.groups[0].rows == 3:
            break
    assert [(group.rows, group.shared_tokens) for group in plan.groups] == [(3, 160)]
    while bench.model.plans:
        bench.step()
    first = plan.groups[0].first_row
    shared = {tuple(bench.model.slots[row.slot].pages[:10]) for row in plan.rows[first : first + 3]}
    assert len(shared) == 1


def test_a_short_chunk_joins_the_group_of_decode_rows_and_a_long_one_does_not() -> None:
    bench = SchedulerBench(page_size=16, num_pages=64, budget=StepBudget(step_ms=1000.0))
    document = long_reply_prompt(160, 20)
    for tail in (3, 4, 5):
        bench.submit(str(tail), [*document, tail], max_tokens=40)
    grouped = RowGroup(first_row=0, rows=3, shared_tokens=160)
    planned_until(bench, lambda plan: plan.groups == [grouped])
    bench.submit("other", [9, 9], max_tokens=1)
    bench.submit("short", [*document, 6, 7, 8], max_tokens=1)
    bench.submit("long", [*document, *[6] * 9], max_tokens=1)
    plan = planned_until(bench, lambda plan: len(plan.rows) == 6)
    tokens = [len(unpack(row.tokens)) for row in plan.rows]
    assert plan.groups == [RowGroup(first_row=0, rows=4, shared_tokens=160)]
    assert sorted(tokens[:4]) == [0, 0, 0, 3] and sorted(tokens[4:]) == [2, 9]
    planned_until(bench, lambda plan: plan.groups == [grouped] and len(plan.rows) == 3)
    bench.run()
    assert all(bench.tokens(str(tail)) == reply_alone([*document, tail], 40) for tail in (3, 4, 5))
