"""Chat and text completions of a server with all its processes, and the metrics that count them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from served import HELLO, Served, text_of

PROMPT = "The quick brown fox"


def chat(served: Served, *, extra: dict[str, Any] | None = None, **fields: Any) -> Any:
    return served.client.chat.completions.create(
        model=served.model, messages=HELLO, extra_body={"ignore_eos": True, **(extra or {})}, **fields
    )


def test_the_chunks_of_a_stream_make_the_completion(served: Served) -> None:
    asked: Any = {"max_tokens": 16, "temperature": 0}
    whole = chat(served, **asked)
    *chunks, usage = list(chat(served, stream=True, stream_options={"include_usage": True}, **asked))
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text_of(whole)
    assert usage.usage.completion_tokens == whole.usage.completion_tokens == 16
    assert usage.usage.prompt_tokens == whole.usage.prompt_tokens


@pytest.mark.parametrize(
    "narrowed",
    [{"top_p": 0}, {"top_p": 1e-50}, {"top_p": 1e-6}, {"extra": {"top_k": 1}}, {"extra": {"min_p": 1.0}}],
    ids=str,
)
def test_a_choice_narrowed_to_one_token_is_greedy(served: Served, narrowed: Any) -> None:
    greedy = text_of(chat(served, max_tokens=16, temperature=0))
    assert text_of(chat(served, max_tokens=16, temperature=1.3, seed=4, **narrowed)) == greedy


def test_choices_differ_and_are_those_of_consecutive_seeds(served: Served) -> None:
    several = chat(served, max_tokens=12, temperature=1, seed=5, n=3)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert several.usage.completion_tokens == 36
    alone = [text_of(chat(served, max_tokens=12, temperature=1, seed=5 + index)) for index in range(3)]
    assert [choice.message.content for choice in several.choices] == alone
    assert len(set(alone)) == 3


def test_a_stop_token_ends_the_reply_and_is_named(served: Served) -> None:
    (token,) = served.token_ids("z")
    completion = chat(
        served, extra={"stop_token_ids": [token], "min_tokens": 2}, logit_bias={str(token): 100}, max_tokens=9
    )
    assert completion.choices[0].finish_reason == "stop"
    assert completion.choices[0].stop_reason == token
    assert completion.usage.completion_tokens == 3


def test_log_probabilities_are_those_of_the_tokens_and_their_rivals(served: Served) -> None:
    completion = chat(served, max_tokens=6, temperature=0, logprobs=True, top_logprobs=5)
    entries = completion.choices[0].logprobs.content
    assert len(entries) == 6
    for entry in entries:
        assert len(entry.top_logprobs) == 5
        assert entry.top_logprobs[0].token == entry.token
        assert entry.top_logprobs[0].logprob == entry.logprob
        values = [rival.logprob for rival in entry.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) <= 1 + 1e-5
    data = b"".join(bytes(entry.bytes) for entry in entries)
    assert data.decode("utf-8", "replace") == text_of(completion)


@pytest.mark.parametrize(
    "penalty",
    [{"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"extra": {"repetition_penalty": 3.0}}],
    ids=str,
)
def test_a_penalty_makes_repetition_rarer(served: Served, penalty: Any) -> None:
    asked: Any = {"max_tokens": 30, "temperature": 0, "logprobs": True}
    asked["logit_bias"] = {str(token): 30 for token in range(70, 90)}

    def kinds(**more: Any) -> int:
        return len({entry.token for entry in chat(served, **asked, **more).choices[0].logprobs.content})

    assert kinds(**penalty) > kinds()


def complete(served: Served, prompt: Any, *, extra: dict[str, Any] | None = None, **fields: Any) -> Any:
    fields = {"max_tokens": 8, "temperature": 0, **fields}
    extra = {"ignore_eos": True, **(extra or {})}
    return served.client.completions.create(model=served.model, prompt=prompt, extra_body=extra, **fields)


def test_log_probabilities_of_a_prompt_are_those_of_generating_it(served: Served) -> None:
    generated = complete(served, PROMPT, max_tokens=6, logprobs=1)
    ids = served.token_ids(PROMPT)
    reply = list(generated.choices[0].logprobs.token_logprobs)
    tokens = chosen_ids(served, ids, 6)
    echoed = complete(served, ids + tokens, echo=True, max_tokens=0, logprobs=1)
    assert echoed.choices[0].logprobs.token_logprobs[-6:] == pytest.approx(reply, abs=1e-3)


def chosen_ids(served: Served, ids: list[int], count: int) -> list[int]:
    """The greedy continuation, token by token, by the ids of its prompt's log-probabilities."""
    chosen: list[int] = []
    for _ in range(count):
        answer = complete(served, ids + chosen + [0], max_tokens=0, echo=True, extra={"prompt_logprobs": 1})
        last = answer.choices[0].model_dump()["prompt_logprobs"][-1]
        chosen.append(next(int(token) for token, entry in last.items() if entry["rank"] == 1))
    return chosen


def test_prompt_log_probabilities_behind_a_cached_prefix_are_those_of_the_whole_list(served: Served) -> None:
    prompt = served.token_ids("the dog sat on the mat and then it ran to the log " * 6)
    start = len(prompt) - 5
    whole = complete(served, prompt, max_tokens=0, extra={"prompt_logprobs": 2})
    extra = {"prompt_logprobs": 2, "prompt_logprobs_start": start}
    behind = complete(served, prompt, max_tokens=0, extra=extra)
    assert [each.usage.prompt_tokens_details.cached_tokens for each in (whole, behind)] == [0, start - 1]
    expected, scored = (each.choices[0].model_dump()["prompt_logprobs"] for each in (whole, behind))
    assert scored[:start] == [None] * start
    for ours, theirs in zip(scored[start:], expected[start:], strict=True):
        assert {t: e["logprob"] for t, e in ours.items()} == pytest.approx(
            {t: e["logprob"] for t, e in theirs.items()}, abs=1e-4
        )


def test_metrics_are_in_prometheus_format_and_only_grow(served: Served) -> None:
    def counters() -> dict[tuple[str, str], float]:
        text = served.http.get("/metrics").text
        return {
            (sample.name, json.dumps(sample.labels)): sample.value
            for family in text_string_to_metric_families(text)
            if family.type in ("counter", "histogram")
            for sample in family.samples
            if not sample.name.endswith("_created")
        }

    before = counters()
    chat(served, max_tokens=4)
    after = counters()
    assert all(after[key] >= value for key, value in before.items())

    def grown(name: str) -> float:
        return sum(value - before.get(key, 0) for key, value in after.items() if key[0] == name)

    assert grown("arbora_output_tokens_total") == 4
    assert grown("arbora_request_completion_tokens_total") == 4
    assert grown("arbora_choices_finished_total") == 1
    assert grown("arbora_time_to_first_token_seconds_count") == 1
    assert grown("arbora_inter_token_latency_seconds_count") == 3
    assert grown("arbora_request_duration_seconds_count") == 1
    prompt = grown("arbora_prompt_tokens_cached_total") + grown("arbora_prompt_tokens_computed_total")
    assert prompt == grown("arbora_prompt_tokens_looked_up_total")
    assert prompt == grown("arbora_request_prompt_tokens_total") > 0
    # A step that accepts drafted tokens samples several tokens.
    assert grown("arbora_steps_total") + grown("arbora_accepted_tokens_total") >= 4
