"""Requests of models with windows: the pages that they hold, find again and lack."""

from __future__ import annotations

import pytest
from arbora.radix_cache import Reach
from arbora.runtime.messages import GroupCost, PrefixPinned, QueryRefused
from fake_model import long_reply_prompt, reply_alone
from scheduler_bench import SchedulerBench

WINDOW = Reach(16)
PROMPT = long_reply_prompt(120, 100)


@pytest.mark.parametrize("reaches", [(WINDOW,), (Reach(16, in_chunks=True),), (Reach(5), Reach(40))])
def test_each_turn_of_a_chat_finds_all_of_the_turn_before(reaches: tuple[Reach, ...]) -> None:
    bench = SchedulerBench(200, 4, windows=[(reach, 34) for reach in reaches])
    chat = PROMPT
    for turn in range(4):
        before = bench.scheduler.stats().prompt_tokens_cached
        bench.submit(f"turn {turn}", chat, 30)
        bench.run()
        reply = bench.tokens(f"turn {turn}")
        assert reply == reply_alone(chat, 30)
        if turn:  # the last token of a reply may have no KV
            assert bench.scheduler.stats().prompt_tokens_cached - before in (len(chat) - 5, len(chat) - 4)
        chat = [*chat, *reply, 7, 8, 9, 10]
    assert all(group.num_evicted > 0 for group in bench.cache.windows)


def test_a_running_request_gives_back_the_pages_behind_its_window() -> None:
    bench = SchedulerBench(200, 4, windows=[(WINDOW, 40)])
    bench.submit("a", PROMPT, 100)
    for _ in range(60):
        bench.plan()
        if bench.model.plans:
            bench.step()
    used = 40 - bench.cache.windows[0].available
    assert 0 < used * 4 <= 16 + 2 + 2 * 4 + 4
    (window,) = bench.scheduler.stats().windows
    assert window.free + window.cached == 40 - used and window.cached == len(bench.cache.windows[0].idle)


def test_a_reply_is_right_if_rows_share_pages_of_the_full_group_and_windows_differ() -> None:
    cost = GroupCost(0.01, min_shared_tokens=1)
    bench = SchedulerBench(300, 4, windows=[(WINDOW, 100)], group_cost=cost)
    prompts = [[*PROMPT, *tail] for tail in ([1, 2], [3, 4], [3, 5])]
    for number, prompt in enumerate(prompts):
        bench.submit(str(number), prompt, 20)
    bench.run()
    assert [bench.tokens(str(number)) for number in range(3)] == [reply_alone(each, 20) for each in prompts]


def test_prompts_that_together_need_more_windowed_pages_than_there_are_start_one_after_the_other() -> None:
    bench = SchedulerBench(300, 4, windows=[(WINDOW, 20)])
    prompts = [long_reply_prompt(100, 20, salt) for salt in range(4)]
    for number, prompt in enumerate(prompts):
        bench.submit(str(number), prompt, 20)
    bench.run()
    assert [bench.tokens(str(number)) for number in range(4)] == [reply_alone(each, 20) for each in prompts]


def test_a_request_that_a_group_can_never_hold_is_refused_with_the_groups_name() -> None:
    bench = SchedulerBench(200, 4, windows=[(WINDOW, 10)])
    bench.submit("a", PROMPT, 8)
    refused = bench.refused["a"]
    assert (refused.status, refused.code) == (400, "kv_cache_exceeded")
    for words in (
        "needs 14 pages",
        "(128 tokens)",
        "a window of 16 tokens",
        "has 10 for them",
        "--kv-memory",
    ):
        assert words in refused.message
    bench.submit("short", PROMPT[:20], 8)
    bench.run()
    assert bench.tokens("short") == reply_alone(PROMPT[:20], 8)


def test_a_pin_keeps_the_window_at_its_end_and_leaves_others_enough() -> None:
    bench = SchedulerBench(200, 4, windows=[(WINDOW, 18)], max_pinned=100)
    bench.submit("a", PROMPT[:60], 0)
    bench.run()
    assert isinstance(bench.pin(PROMPT[:60]), PrefixPinned)
    other = long_reply_prompt(100, 20, 5)
    bench.submit("b", other, 20)
    bench.run()
    assert bench.tokens("b") == reply_alone(other, 20)
    assert bench.cache.match("", bytes(4), 0).length == 0
    bench.submit("c", PROMPT[:70], 4)
    bench.run()
    assert bench.scheduler.stats().prompt_tokens_cached == 60
    bench.submit("long", long_reply_prompt(100, 20, 9), 20)
    assert isinstance(bench.pin(PROMPT[:40], name="q"), QueryRefused)


def test_tokens_whose_windowed_pages_are_lost_count_as_evicted() -> None:
    from fake_model import pack

    bench = SchedulerBench(200, 4, windows=[(WINDOW, 16)])
    for salt in (0, 3, 6):
        bench.submit(str(salt), long_reply_prompt(100, 1, salt), 1)
        bench.run()
    found = bench.cache.reports.divergence("", pack(long_reply_prompt(100, 1, 0)), 4)
    assert (found.matched, found.remembered) == (0, 100)
