"""Evicted pages are restored from the page store instead of being computed again."""

from __future__ import annotations

from arbora.runtime.messages import Abort, DropCache, RowError
from arbora.runtime.scheduler.budget import FIRST_RESTORE
from arbora.runtime.scheduler.request import Request
from evicted_prompts import BIG, LONG, PROMPT, with_evicted_prompt, with_long_evicted_prompt
from fake_model import long_reply_prompt, reply_alone, unpack
from scheduler_bench import SchedulerBench


def test_an_evicted_prompt_is_restored_and_not_computed() -> None:
    bench = with_evicted_prompt()
    computed = bench.scheduler.stats().prompt_tokens_computed
    bench.submit("again", PROMPT, max_tokens=8)
    bench.run()
    assert bench.tokens("again") == reply_alone(PROMPT, 8)
    assert bench.cached("again") == 36  # all full pages but the last, whose last token must be computed
    assert bench.scheduler.stats().prompt_tokens_computed == computed + 4
    assert bench.model.store.restored == 9
    assert not bench.model.store.held


def restored_pages(bench: SchedulerBench) -> list[int]:
    """How many pages each of the next steps restores."""
    return [sum(len(unpack(part.pages)) for part in plan.restores) for plan in bench.model.plans]


def test_a_long_prefix_is_restored_over_several_steps_while_streams_continue() -> None:
    bench = with_long_evicted_prompt()
    bench.submit("stream", [1, 2, 3], max_tokens=20, namespace=None)
    bench.plan()
    bench.submit("again", LONG, max_tokens=8)
    bench.answer_fetches()
    restored = []
    while bench.finish("again") is None:
        bench.plan()
        restored.append(restored_pages(bench)[-1])
        streaming = len(bench.tokens("stream"))
        bench.step()
        assert len(bench.tokens("stream")) == streaming + 1 or bench.finish("stream")
    assert max(restored) * 4 == FIRST_RESTORE
    assert sum(restored) == bench.model.store.restored == 224
    assert bench.cached("again") == 896
    assert bench.tokens("again") == reply_alone(LONG, 8)


def test_pages_that_a_running_request_restores_are_not_restored_for_another() -> None:
    bench = with_long_evicted_prompt()
    bench.submit("again", LONG, max_tokens=1)
    bench.submit("third", [*LONG, 7, 8], max_tokens=1)
    bench.run()
    assert bench.model.store.restored == 225
    assert bench.cached("third") == 900
    assert bench.tokens("third") == reply_alone([*LONG, 7, 8], 1)
    assert not bench.model.store.held


def test_a_request_that_ends_during_its_restore_leaves_no_state() -> None:
    bench = with_long_evicted_prompt()
    bench.submit("again", LONG, max_tokens=1)
    bench.answer_fetches()
    bench.plan()
    bench.handle(Abort("again"))
    bench.step()
    bench.submit("other", [3, 1, 4, 1, 5], max_tokens=1)
    bench.run()
    assert bench.model.store.restored * 4 == FIRST_RESTORE
    assert not bench.model.store.held
    assert bench.scheduler.stats().pages_used == 0


def test_the_next_request_waits_until_a_step_can_restore_its_pages() -> None:
    bench = with_long_evicted_prompt()
    bench.submit("bigger", [*BIG[1:], 9], max_tokens=1, namespace="bigger")
    bench.run()
    bench.submit("long", LONG[:640], max_tokens=1)
    bench.submit("next", BIG[:200], max_tokens=1, namespace="big")
    bench.submit("new", [7] * 9, max_tokens=1)
    bench.answer_fetches()
    bench.plan()
    assert restored_pages(bench) == [FIRST_RESTORE // 4]
    assert {request.id for request in bench.scheduler._requests.running} == {"long", "new"}
    bench.run()
    assert bench.cached("next") == 196


def test_restored_pages_are_in_the_tree_for_the_next_request() -> None:
    bench = with_evicted_prompt()
    bench.submit("again", PROMPT, max_tokens=1)
    bench.run()
    bench.submit("third", PROMPT, max_tokens=1)
    bench.run()
    assert bench.cached("third") == 39
    assert bench.model.store.restored == 9


def test_a_request_that_ends_before_its_first_step_leaves_no_state() -> None:
    bench = with_evicted_prompt()
    bench.submit("again", PROMPT, max_tokens=1)
    bench.answer_fetches()
    bench.handle(Abort("again"))
    bench.submit("other", [3, 1, 4, 1, 5], max_tokens=1)
    bench.run()
    assert bench.model.store.restored == 0
    assert not bench.model.store.held
    assert bench.scheduler.stats().pages_used == 0


def started_but_not_planned(bench: SchedulerBench) -> Request:
    """A request with a slot and pages to restore, but no row in a step yet."""
    bench.submit("again", PROMPT, max_tokens=8)
    bench.answer_fetches()
    bench.scheduler._admit(0.0)
    request = bench.scheduler._requests._open["again"]
    assert request.allocation.restoring
    return request


def test_a_request_that_is_retracted_before_its_first_step_holds_one_fetch() -> None:
    bench = with_evicted_prompt()
    request = started_but_not_planned(bench)
    bench.scheduler._requests.retract(request)
    bench.deliver()
    bench.run()
    assert bench.tokens("again") == reply_alone(PROMPT, 8)
    assert bench.cached("again") == 36
    assert not bench.model.store.held


def test_pages_that_a_started_request_restores_outlive_a_dropped_namespace() -> None:
    bench = with_evicted_prompt()
    request = started_but_not_planned(bench)
    bench.control(DropCache(0, 1, "", ""))
    assert request.stored.fetch is not None
    bench.run()
    assert bench.tokens("again") == reply_alone(PROMPT, 8)
    assert not bench.model.store.held


def test_pages_whose_logits_are_not_numbers_are_not_restored_for_others() -> None:
    bench = with_evicted_prompt()
    bench.submit("again", PROMPT, max_tokens=4)
    bench.answer_fetches()
    assert bench.plan()
    slot = bench.model.plans[0].rows[0].slot
    result = bench.model.run_step()
    result.errors = [RowError(slot, "not_a_number", "not a number")]
    bench.handle(result)
    bench.run()
    assert bench.finish("again") == "error"
    bench.submit("third", PROMPT, max_tokens=4)
    bench.run()
    assert bench.cached("third") == 0
    assert bench.tokens("third") == reply_alone(PROMPT, 4)


def test_a_restore_replaces_the_copy_of_a_partly_matched_page() -> None:
    bench = with_evicted_prompt()
    bench.submit("near", [*PROMPT[:10], 0, 0, 0, 0, 0, 0], max_tokens=1)
    bench.run()
    bench.submit("again", PROMPT, max_tokens=8)
    bench.run()
    assert bench.tokens("again") == reply_alone(PROMPT, 8)
    assert bench.cached("again") == 36


def test_a_dropped_namespace_leaves_the_store_and_the_waiting_requests() -> None:
    bench = with_evicted_prompt()
    bench.submit("again", PROMPT, max_tokens=1)
    bench.answer_fetches()
    bench.control(DropCache(0, 1, "", ""))
    bench.run()
    assert bench.tokens("again") == reply_alone(PROMPT, 1)
    assert bench.cached("again") == 0
    assert {namespace for namespace, _ in bench.model.store.pages.values()} <= {"big"}


def test_a_retracted_request_may_be_restored_when_it_starts_again() -> None:
    bench = SchedulerBench(num_pages=16, page_size=4, most_stored=1000)
    prompts = [long_reply_prompt(24, 20, salt=salt) for salt in (1, 2)]
    for name, prompt in enumerate(prompts):
        bench.submit(f"r{name}", prompt, max_tokens=20)
    bench.run()
    assert bench.scheduler.stats().retractions > 0
    for name, prompt in enumerate(prompts):
        assert bench.tokens(f"r{name}") == reply_alone(prompt, 20)
    assert not bench.model.store.held


def served_to_ann(retracted: bool) -> float:
    """Ann's counter after her prompt and reply, while Bob waits."""
    bench = with_long_evicted_prompt()
    bench.submit("again", LONG, max_tokens=2, tenant="ann")
    bench.submit("other", BIG[1:], max_tokens=1, tenant="bob", namespace=None)
    bench.answer_fetches()
    bench.plan()
    request = bench.scheduler._requests._open["again"]
    restored = request.allocation.planned
    assert request.allocation.restoring
    if retracted:
        bench.scheduler._requests.retract(request)
        bench.step()
        assert request.charged == restored  # nobody restored or computed the rest
    while bench.finish("again") is None:
        bench.answer_fetches()
        if bench.plan() or bench.model.plans:
            bench.step()
    assert bench.scheduler.stats().waiting == 1
    return bench.scheduler._fairness._periods[0].counters["ann"]


def test_a_request_that_is_retracted_while_it_is_restored_is_charged_the_same() -> None:
    assert served_to_ann(retracted=True) == served_to_ann(retracted=False)
