"""Requests of a model with recurrent layers start at checkpoints of their states."""

from __future__ import annotations

import pytest
from arbora.runtime.messages import Finish
from arbora.runtime.scheduler import plan
from arbora.runtime.scheduler.budget import StepBudget
from fake_model import EOS, long_reply_prompt, reply_alone
from scheduler_bench import SchedulerBench

SYSTEM = [1 + i * 7 % 60 for i in range(22)]


def new_bench(more_states: int = 20, slots: int = 4) -> SchedulerBench:
    return SchedulerBench(slots=slots, num_pages=200, max_pinned=20, states=2 * slots + more_states)


def serve(bench: SchedulerBench, name: str, prompt: list[int], max_tokens: int = 8) -> list[int]:
    bench.submit(name, prompt, max_tokens)
    bench.run()
    assert bench.tokens(name) == reply_alone(prompt, max_tokens)
    return bench.tokens(name)


def cached(bench: SchedulerBench, name: str) -> int:
    return next(each.cached_tokens for each in bench.outputs[name] if each.cached_tokens is not None)


def test_a_next_turn_starts_at_the_end_of_the_last_reply() -> None:
    bench, tokens, last = new_bench(), list(SYSTEM), [EOS]
    for turn in range(8):
        before = len(tokens)
        tokens += [1 + turn, 2, 3]
        reply = serve(bench, f"t{turn}", tokens, 30)
        if turn:
            assert cached(bench, f"t{turn}") == before - (last[-1] != EOS)
        tokens, last = tokens + reply, reply


@pytest.mark.parametrize("length", [20, 22])
def test_the_same_prompt_again_starts_at_the_last_page_before_its_last_token(length: int) -> None:
    bench = new_bench()
    for name, expected in (("a", 0), ("b", length - 1 - (length - 1) % 4)):
        serve(bench, name, SYSTEM[:length])
        assert cached(bench, name) == expected


def test_a_request_that_leaves_a_known_prompt_makes_a_checkpoint_there() -> None:
    bench = new_bench()
    for name, expected in (("a", 0), ("b", 0), ("c", 22), ("d", 22)):
        serve(bench, name, [*SYSTEM, ord(name) % 50, 5, 6, 7])
        assert cached(bench, name) == expected


def test_requests_that_come_together_share_all_whole_pages_of_their_prefix() -> None:
    bench = new_bench()
    for name in "abc":
        bench.submit(name, [*SYSTEM, ord(name) % 50, 5, 6, 7])
    bench.run()
    assert [cached(bench, name) for name in "abc"] == [0, 20, 20]


def test_choices_of_one_prompt_compute_it_once() -> None:
    bench = new_bench()
    for seed in range(3):
        bench.submit(f"n{seed}", SYSTEM, seed=seed)
    bench.run()
    assert [cached(bench, f"n{seed}") for seed in range(3)] == [0, 20, 20]


class TenTokens(StepBudget):
    def prefill_tokens(self, decode_rows: int, streams_text: bool, restored_tokens: int = 0) -> int:
        return 10


def test_a_chunk_ends_with_a_page_and_leaves_no_tokens_to_other_prompts() -> None:
    bench = SchedulerBench(slots=2, num_pages=200, states=10, budget=TenTokens(8.0))
    bench.submit("a", long_reply_prompt(38, 4), 4, priority=1)
    bench.plan()
    bench.submit("b", long_reply_prompt(38, 4, salt=1), 4)
    bench.plan()
    chunks = [[len(row.tokens) // 4 for row in step.rows] for step in bench.model.plans]
    assert chunks == [[8], [8]]


def test_a_reply_that_a_stop_string_ends_leaves_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "DECODE_CHECKPOINT_TOKENS", 5)
    bench, prompt = new_bench(), long_reply_prompt(12, 40)
    bench.submit("a", prompt, 40)
    while len(bench.tokens("a")) < 18:
        bench.plan()
        bench.step()
    bench.handle(Finish("a"))
    bench.run()
    serve(bench, "b", prompt + bench.tokens("a")[:16] + [3, 4, 5])
    assert cached(bench, "b") == 28  # the end of a page


def test_a_request_in_decode_keeps_its_last_two_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "DECODE_CHECKPOINT_TOKENS", 5)
    bench = new_bench()
    bench.submit("a", long_reply_prompt(12, 40), 40)
    while len(bench.tokens("a")) < 30:
        bench.plan()
        bench.step()
    [lock] = bench.cache._locks
    assert [position for position, _ in lock.checkpoints if position > 12] == [28, 36]


def test_checkpoints_are_evicted_the_superseded_first() -> None:
    bench = new_bench(more_states=3, slots=1)
    conversations = [long_reply_prompt(9, 20, salt=salt) for salt in range(2)]
    for turn in range(3):
        for number, tokens in enumerate(conversations):
            reply = serve(bench, f"{number} {turn}", tokens, 6)
            if turn:
                assert cached(bench, f"{number} {turn}") >= len(tokens) - 3
            conversations[number] = [*tokens, *reply, 9, 8]
    assert bench.cache.checkpoints is not None and bench.cache.checkpoints.num_evicted > 0


def test_without_places_for_checkpoints_replies_are_the_same() -> None:
    bench = new_bench(more_states=0, slots=3)
    prompts = [[*SYSTEM[:8], salt, 3, 4] for salt in range(1, 9)]
    for number, prompt in enumerate(prompts):
        bench.submit(f"r{number}", prompt, 12)
    bench.run()
    for number, prompt in enumerate(prompts):
        assert bench.tokens(f"r{number}") == reply_alone(prompt, 12)


def test_a_pin_keeps_its_checkpoint() -> None:
    bench = new_bench(more_states=2, slots=1)
    serve(bench, "a", [*SYSTEM[:16], 50])
    serve(bench, "b", [*SYSTEM[:16], 51, 52])
    bench.pin(SYSTEM[:16])
    for salt in range(5):
        serve(bench, f"other {salt}", long_reply_prompt(9, 20, salt=salt))
    serve(bench, "c", [*SYSTEM[:16], 53])
    assert cached(bench, "c") == 16
