"""Text that a grammar forces, asked of a server with all its processes."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import jsonschema
import openai
import pytest
from served import HELLO, Served, text_of

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "address": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Paris", "Berlin"]},
                "number": {"type": "integer", "maximum": 99},
            },
            "required": ["city", "number"],
            "additionalProperties": False,
        },
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 2, "maxItems": 2},
    },
    "required": ["name", "address", "tags"],
    "additionalProperties": False,
}


def fill_in(served: Served, **fields: Any) -> Any:
    schema = {"type": "json_schema", "json_schema": {"name": "form", "schema": FORM}}
    fields = {"messages": HELLO, "max_tokens": 300, "response_format": schema, **fields}
    return served.client.chat.completions.create(model=served.model, **fields)


def test_forced_tokens_are_counted_and_need_no_step_each(served: Served) -> None:
    before = served.metrics()
    completion = fill_in(served, seed=1)
    after = served.metrics()
    forced, steps = (
        after[name] - before[name] for name in ("arbora_jump_forward_tokens_total", "arbora_steps_total")
    )
    tokens = completion.usage.completion_tokens
    assert 0 < forced < tokens
    assert steps <= 2 * (tokens - forced) + 4, "a run is known when the step after its place is under way"
    assert after["arbora_output_tokens_total"] - before["arbora_output_tokens_total"] == tokens


def test_tokens_that_a_grammar_of_the_host_forces_are_counted_too(served: Served) -> None:
    before = served.metrics()
    grammar = """start: "Dear " NAME ", welcome to the club of " NAME ". You will like it here!"
NAME: /[A-Z][a-z]{1,7}/"""
    completion = fill_in(served, response_format=openai.NOT_GIVEN, extra_body={"guided_grammar": grammar})
    text = text_of(completion)
    assert re.fullmatch(
        "Dear ([A-Z][a-z]+), welcome to the club of ([A-Z][a-z]+). You will like it here!", text
    )
    assert completion.choices[0].finish_reason == "stop"
    after = served.metrics()
    assert after["arbora_jump_forward_tokens_total"] - before["arbora_jump_forward_tokens_total"] > 10


@pytest.mark.parametrize("fields", [{}, {"logprobs": True}, {"presence_penalty": 1.5}], ids=str)
def test_a_reply_fits_its_schema_whether_or_not_tokens_are_forced(served: Served, fields: Any) -> None:
    completion = fill_in(served, **fields)
    jsonschema.validate(json.loads(text_of(completion)), FORM)
    assert completion.choices[0].finish_reason == "stop"
    entries = completion.choices[0].logprobs
    assert entries is None or len(entries.content) == completion.usage.completion_tokens


def test_a_seed_gives_the_same_forms_alone_and_together(served: Served) -> None:
    def text(seed: int) -> str:
        return text_of(fill_in(served, seed=seed, temperature=1, presence_penalty=1))

    alone = [text(seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(text, range(6))) == alone


def test_a_stop_string_inside_forced_text_ends_the_reply_there(served: Served) -> None:
    completion = fill_in(served, stop=['"addr'])
    assert json.loads(text_of(completion) + '"":0}').keys() == {"name", ""}
    assert completion.choices[0].finish_reason == "stop"


def test_a_stream_counts_forced_tokens_in_their_own_chunk(served: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(fill_in(served, stream=True, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
    assert counts == sorted(counts)
    assert max(later - earlier for earlier, later in pairwise(counts)) > 1
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    jsonschema.validate(json.loads(text), FORM)


@pytest.mark.parametrize("max_tokens", [1, 3, 8])
def test_forced_tokens_count_towards_max_tokens(served: Served, max_tokens: int) -> None:
    completion = fill_in(served, max_tokens=max_tokens)
    assert completion.usage.completion_tokens == max_tokens
    assert completion.choices[0].finish_reason == "length"


@pytest.mark.parametrize("whitespace", ["model", "indented", "compact"])
@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("beyond", [0, 1, 7, 20])
def test_a_form_is_whole_within_any_limit_that_it_can_keep(
    served: Served, beyond: int, temperature: int, whitespace: str
) -> None:
    extra = {"complete_json": True, "whitespace": whitespace}
    with pytest.raises(openai.BadRequestError, match="the shortest complete reply has") as refusal:
        fill_in(served, max_tokens=5, extra_body=extra)
    assert refusal.value.param == "max_tokens"
    least = int(refusal.value.message.split(" has ")[-1].split()[0])
    completion = fill_in(served, max_tokens=least + beyond, temperature=temperature, extra_body=extra)
    jsonschema.validate(json.loads(text_of(completion)), FORM)
    assert completion.usage.completion_tokens <= least + beyond
    assert completion.choices[0].finish_reason in ("length", "stop")


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"logprobs": True}, "complete_json"), ({"response_format": openai.NOT_GIVEN}, "complete_json")],
    ids=["logprobs", "no format"],
)
def test_completing_is_refused_where_it_can_not_be(served: Served, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError, match="complete_json") as refusal:
        fill_in(served, extra_body={"complete_json": True}, **fields)
    assert refusal.value.param == param
