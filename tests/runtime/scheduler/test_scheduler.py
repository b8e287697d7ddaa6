"""The scheduler's state machine with a fake model whose pages hold token ids."""

from __future__ import annotations

from typing import Any

import pytest
from arbora.runtime.grammar_spec import GrammarKind
from arbora.runtime.messages import (
    Abort,
    Logprobs,
    PeerDown,
    QueryRequests,
    ReplyError,
    RequestList,
    RowError,
    RowPromptLogprobs,
)
from arbora.runtime.scheduler import counts
from arbora.runtime.scheduler.counts import list_requests
from arbora.runtime.scheduler.fairness import MAX_OVERTAKEN
from fake_model import EOS, long_reply_prompt, next_token, pack, reply_alone, unpack
from scheduler_bench import SchedulerBench, settled


def test_a_reply_has_the_models_tokens_one_by_one() -> None:
    bench = SchedulerBench()
    prompt = long_reply_prompt(10, 8)
    bench.submit("a", prompt)
    bench.run()
    assert bench.tokens("a") == reply_alone(prompt, 8)
    assert bench.finish("a") == "length"
    assert len(bench.outputs["a"]) == 8


def test_an_end_of_sequence_token_ends_the_reply_and_is_its_last_token() -> None:
    prompt = next(p for p in ([i, 3] for i in range(5000)) if reply_alone(p, 6)[-1] == EOS)
    bench = SchedulerBench()
    bench.submit("a", prompt, max_tokens=50)
    bench.run()
    assert bench.tokens("a") == reply_alone(prompt, 50)
    assert bench.finish("a") == "stop"
    assert bench.outputs["a"][-1].stop_token == EOS


def test_ignore_eos_generates_up_to_the_length() -> None:
    prompt = next(p for p in ([i, 3] for i in range(5000)) if reply_alone(p, 3)[-1] == EOS)
    bench = SchedulerBench()
    bench.submit("a", prompt, max_tokens=12, ignore_eos=True)
    bench.run()
    assert len(bench.tokens("a")) == 12
    assert bench.finish("a") == "length"


def test_a_stop_token_ends_the_reply() -> None:
    prompt = long_reply_prompt(5, 8)
    stop = reply_alone(prompt, 8)[3]
    bench = SchedulerBench()
    bench.submit("a", prompt, stop_token_ids=(stop,))
    bench.run()
    assert bench.tokens("a") == reply_alone(prompt, 8)[: reply_alone(prompt, 8).index(stop) + 1]
    assert bench.outputs["a"][-1].stop_token == stop


def test_nothing_is_planned_past_the_length() -> None:
    bench = SchedulerBench(page_size=1, num_pages=13)
    bench.submit("a", long_reply_prompt(5, 8))
    bench.run()
    assert len(bench.tokens("a")) == 8
    assert bench.scheduler.stats().steps == 8


def test_a_long_prompt_is_computed_in_chunks_while_others_decode() -> None:
    bench = SchedulerBench(num_pages=200)
    bench.submit("short", long_reply_prompt(4, 40), max_tokens=40)
    bench.run(steps=6)
    bench.submit("long", long_reply_prompt(300, 4), max_tokens=4)
    before = len(bench.tokens("short"))
    bench.run(steps=6)
    assert len(bench.tokens("short")) >= before + 5
    bench.run()
    assert bench.tokens("long") == reply_alone(long_reply_prompt(300, 4), 4)
    assert bench.tokens("short") == reply_alone(long_reply_prompt(4, 40), 40)


@pytest.mark.parametrize(
    "kind, streamed, may_wait",
    [
        (None, True, False),
        ("structural_tag", True, False),
        ("regex", True, False),
        ("grammar", True, False),
        ("json_schema", True, True),
        ("json_object", True, True),
        ("choice", True, True),
        (None, False, True),
    ],
)
def test_chunks_are_larger_where_nobody_reads_a_reply_as_it_comes(
    kind: GrammarKind | None, streamed: bool, may_wait: bool
) -> None:
    budget = settled(base_ms=20.0, token_ms=1.0, step_ms=100.0)
    bench = SchedulerBench(num_pages=400, budget=budget)
    options: dict[str, Any] = {} if kind is None else {"grammar": "even", "kind": kind}
    bench.submit("short", long_reply_prompt(4, 40), max_tokens=40, is_streamed=streamed, **options)
    bench.compiler.finish_all()
    bench.run(steps=6)
    bench.submit("long", long_reply_prompt(900, 4), max_tokens=4)
    bench.run(steps=1)
    bench.plan()
    [chunk] = [len(row.tokens) // 4 for row in bench.model.plans[-1].rows if row.tokens]
    assert chunk >= 200 if may_wait else chunk <= 80
    bench.run()
    assert bench.tokens("long") == reply_alone(long_reply_prompt(900, 4), 4)
    assert bench.finish("short") in ("length", "stop")
    if kind is None:
        assert bench.tokens("short") == reply_alone(long_reply_prompt(4, 40), 40)


@pytest.mark.parametrize("start", [0, 1, 37, 59])
def test_prompt_logprobs_of_a_retracted_request_come_once(start: int) -> None:
    bench = SchedulerBench(num_pages=52, page_size=4)
    prompts = {name: long_reply_prompt(60, 40, ord(name)) for name in "abc"}
    for name, prompt in prompts.items():
        bench.submit(name, prompt, max_tokens=40, prompt_logprobs=0, prompt_logprobs_start=start)
    for _ in range(1000):
        while bench.plan():
            pass
        if not bench.model.plans:
            break
        rows = [row for row in bench.model.plans[0].rows if row.targets]
        result = bench.model.run_step()
        result.prompt_logprobs = [
            RowPromptLogprobs(row.slot, Logprobs(row.targets, b"", b"")) for row in rows
        ]
        bench.handle(result)
    assert bench.scheduler.stats().retractions > 0
    for name, prompt in prompts.items():
        reported = [output.prompt_logprobs for output in bench.outputs[name] if output.prompt_logprobs]
        assert [unpack(logprobs.chosen) for logprobs in reported] == [prompt[max(start, 1) :]]
        assert bench.tokens(name) == reply_alone(prompt, 40)


def test_a_request_that_can_never_fit_is_refused_with_the_numbers() -> None:
    bench = SchedulerBench(num_pages=4, page_size=4)
    bench.submit("a", [1] * 10, max_tokens=7)
    assert "5 pages" in bench.refused["a"].message
    assert bench.refused["a"].status == 400
    bench.submit("b", [1] * 900, max_tokens=200)
    assert bench.refused["b"].code == "context_length_exceeded"
    bench.submit("c", [], max_tokens=1)
    assert bench.refused["c"].param == "prompt"


def test_too_many_waiting_requests_are_refused_with_429() -> None:
    bench = SchedulerBench(slots=1, max_waiting=2)
    for name in "abc":
        bench.submit(name, [1, 2, 3])
    assert bench.refused["c"].status == 429
    assert bench.accepted == {"a", "b"}


def test_requests_whose_grammars_are_being_compiled_count_as_waiting() -> None:
    bench = SchedulerBench(max_waiting=2)
    for name in "abc":
        bench.submit(name, [1, 2, 3], grammar="even")
    assert bench.refused["c"].status == 429


def test_a_finish_for_a_reply_that_ended_meanwhile_changes_nothing() -> None:
    bench = SchedulerBench()
    prompt = long_reply_prompt(10, 8)
    bench.submit("a", prompt)
    bench.run()
    bench.handle(Abort("a"))
    bench.submit("b", prompt)
    bench.run()
    assert bench.finish("a") == "length"
    assert bench.tokens("b") == reply_alone(prompt, 8)
    assert bench.scheduler.idle


def test_when_pages_run_out_the_youngest_is_retracted_and_loses_nothing() -> None:
    bench = SchedulerBench(num_pages=24, page_size=4)
    prompts = {name: long_reply_prompt(8, 40, ord(name)) for name in "abcd"}
    for name, prompt in prompts.items():
        bench.submit(name, prompt, max_tokens=40)
    bench.run()
    assert bench.scheduler.stats().retractions > 0
    for name, prompt in prompts.items():
        assert bench.tokens(name) == reply_alone(prompt, 40)


@pytest.mark.parametrize("turns", range(6, 9))
def test_no_request_is_retracted_while_an_ended_one_is_about_to_release_pages(turns: int) -> None:
    bench = SchedulerBench(num_pages=8, page_size=4)
    prompts = {name: long_reply_prompt(8, 20, ord(name)) for name in "ab"}
    for name, prompt in prompts.items():
        bench.submit(name, prompt, max_tokens=20)
    for _ in range(turns):
        while bench.plan():
            pass
        bench.step()
    bench.handle(Abort("a"))
    bench.run()
    assert bench.scheduler.stats().retractions == 0
    assert bench.tokens("b") == reply_alone(prompts["b"], 20)


def test_no_request_is_overtaken_for_ever() -> None:
    bench = SchedulerBench(slots=1, num_pages=256)
    cached = long_reply_prompt(16, 1)
    bench.submit("seed", cached, max_tokens=1)
    bench.run()
    bench.submit("running", cached, max_tokens=30)
    bench.plan()
    bench.submit("cold", long_reply_prompt(16, 1, salt=9), max_tokens=1)
    for number in range(MAX_OVERTAKEN + 30):
        bench.submit(f"hot{number}", [*cached, 1 + number // 50, 1 + number % 50], max_tokens=1)
    order: list[str] = []
    for _ in range(500):
        bench.run(steps=1)
        order += [name for name in bench.outputs if name not in order]
    assert 2 < order.index("cold") < MAX_OVERTAKEN + 20


def test_an_aborted_request_is_in_no_step_planned_later_and_gives_its_pages_back() -> None:
    bench = SchedulerBench()
    bench.submit("a", long_reply_prompt(20, 40), max_tokens=40)
    bench.run(steps=5)
    bench.handle(Abort("a"))
    planned = len(bench.model.plans)
    assert not bench.plan()
    while bench.model.plans:
        bench.step()
    assert planned <= 2
    assert bench.scheduler.idle
    assert bench.scheduler.stats().pages_used == 0


def test_the_requests_of_a_dropped_client_end() -> None:
    bench = SchedulerBench()
    bench.submit("a", long_reply_prompt(9, 20), max_tokens=20, client=1)
    bench.submit("b", long_reply_prompt(9, 5, salt=3), max_tokens=5, client=2)
    bench.run(steps=3)
    bench.handle(PeerDown("tokenizer", 1))
    bench.run()
    assert bench.finish("a") is None
    assert bench.finish("b") == "length"


def test_a_grammar_is_accepted_once_compiled_and_binds_every_token() -> None:
    bench = SchedulerBench()
    bench.submit("a", [1, 2, 3], max_tokens=12, grammar="even", ignore_eos=True)
    assert "a" not in bench.accepted
    bench.compiler.finish_all()
    bench.run()
    assert bench.accepted == {"a"}
    assert bench.tokens("a")
    assert all(token % 2 == 0 for token in bench.tokens("a"))


def test_a_grammar_that_cant_be_compiled_is_refused_naming_the_field() -> None:
    bench = SchedulerBench()
    bench.submit("a", [1, 2, 3], grammar="bad")
    bench.compiler.finish_all()
    bench.run()
    assert bench.refused["a"].param == "regex"
    assert bench.refused["a"].status == 400
    assert bench.scheduler.idle


def test_dropping_a_request_that_compiles_leaves_nothing() -> None:
    bench = SchedulerBench()
    bench.submit("a", [1, 2, 3], grammar="even")
    bench.handle(Abort("a"))
    bench.compiler.finish_all()
    bench.run()
    assert bench.scheduler.idle
    assert not bench.accepted


def test_a_request_for_no_tokens_ends_with_its_prompt() -> None:
    bench = SchedulerBench(num_pages=128)
    bench.submit("a", long_reply_prompt(300, 1), max_tokens=0)
    bench.run()
    assert bench.finish("a") == "length"
    assert bench.tokens("a") == []
    assert bench.scheduler.idle


@pytest.mark.parametrize(("min_tokens", "finish"), [(5, "stop"), (0, "error")])
def test_a_complete_grammar_overrides_min_tokens(min_tokens: int, finish: str) -> None:
    bench = SchedulerBench()
    bench.submit("a", [1, 2, 3], max_tokens=12, min_tokens=min_tokens, grammar="even", ignore_eos=True)
    bench.compiler.finish_all()
    bench.run(steps=1)
    result = bench.model.run_step()
    result.errors = [RowError(0, "nothing_allowed", "no token is allowed")]
    bench.handle(result)
    bench.run()
    assert bench.finish("a") == finish
    assert bench.scheduler.idle


def test_a_failed_row_ends_no_other_request() -> None:
    bench = SchedulerBench()
    for name, salt in (("a", 1), ("b", 2)):
        bench.submit(name, long_reply_prompt(6, 10, salt), max_tokens=10)
    bench.run(steps=3)
    result = bench.model.run_step()
    result.errors = [RowError(0, "not_a_number", "the logits are not numbers")]
    bench.handle(result)
    bench.run()
    assert bench.finish("a") == "error"
    assert bench.outputs["a"][-1].error == ReplyError("the logits are not numbers")
    assert bench.tokens("b") == reply_alone(long_reply_prompt(6, 10, 2), 10)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_many_requests_at_once_each_get_their_own_text(page_size: int) -> None:
    bench = SchedulerBench(num_pages=600 // page_size, page_size=page_size, slots=16)
    prompts = {f"r{i}": long_reply_prompt(5 + i % 13, 6, salt=i % 4) for i in range(60)}
    for name, prompt in prompts.items():
        bench.submit(name, prompt, max_tokens=6)
    bench.run()
    for name, prompt in prompts.items():
        assert bench.tokens(name) == reply_alone(prompt, 6)
    assert bench.scheduler.stats().pages_used == 0


def test_the_helpers_agree_on_packing() -> None:
    assert unpack(pack([1, 2, 3])) == [1, 2, 3]
    assert next_token([1, 2]) == next_token([1, 2])


def test_a_fault_of_the_grammar_compiler_is_reported_as_the_servers() -> None:
    bench = SchedulerBench()
    bench.submit("a", [1, 2], grammar="fault")
    bench.compiler.finish_all()
    bench.run()
    refused = bench.refused["a"]
    assert (refused.status, refused.code) == (500, "internal_error")
    assert "compiler failed" in refused.message and "too large" not in refused.message


def test_open_requests_are_listed_with_their_states_and_sizes() -> None:
    bench = SchedulerBench(slots=1)
    bench.submit("first", [1, 2, 3, 4, 5], max_tokens=8)
    bench.submit("second", [6, 7, 8], max_tokens=8)

    def listed(tenant: str | None = None) -> RequestList:
        return list_requests(bench.scheduler._requests.open, QueryRequests(0, 7, tenant), now=2.5)

    bench.plan()
    states = [(each.id, each.state, each.cached_tokens) for each in listed().items]
    assert states == [("first", "prefill", 0), ("second", "waiting", None)] or states[0][1] == "decode"
    bench.step()
    bench.plan()
    first, second = listed().items
    assert (first.state, first.prompt_tokens, first.ready_tokens, first.age_s) == ("decode", 5, 5, 2.5)
    assert first.output_tokens >= 1 and second.output_tokens == 0
    assert (listed().query, listed().total, listed("another").total) == (7, 2, 0)


def test_the_list_of_open_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "MAX_LISTED", 2)
    bench = SchedulerBench()
    for number in range(4):
        bench.submit(str(number), [1, 2, number], max_tokens=8)
    shown = list_requests(bench.scheduler._requests.open, QueryRequests(0, 1), now=0.0)
    assert (shown.total, [each.id for each in shown.items]) == (4, ["0", "1"])
