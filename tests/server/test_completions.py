"""Text completions, asked with OpenAI's client of a server with all its processes."""

from __future__ import annotations

import math
from typing import Any

import openai
import pytest
from served import Served

PROMPT = "The quick brown fox"


def complete(
    served: Served, prompt: Any = PROMPT, *, extra: dict[str, Any] | None = None, **fields: Any
) -> Any:
    fields = {"max_tokens": 8, "temperature": 0, **fields}
    extra = {"ignore_eos": True, **(extra or {})}
    return served.client.completions.create(model=served.model, prompt=prompt, extra_body=extra, **fields)


def texts_of(completion: Any) -> list[str]:
    return [choice.text for choice in completion.choices]


def test_a_completion_has_the_shape_that_openai_documents(served: Served) -> None:
    completion = complete(served)
    assert completion.id.startswith("cmpl-")
    assert completion.object == "text_completion"
    assert completion.model == served.model
    (choice,) = completion.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert completion.usage.prompt_tokens == len(served.token_ids(PROMPT))
    assert completion.usage.completion_tokens == 8


def test_sixteen_tokens_are_the_default(served: Served) -> None:
    completion: Any = served.client.completions.create(
        model=served.model, prompt=PROMPT, extra_body={"ignore_eos": True}
    )
    assert completion.usage.completion_tokens == 16


def test_texts_and_ids_alone_and_in_lists_give_the_same(served: Served) -> None:
    ids = served.token_ids(PROMPT)
    (text,) = texts_of(complete(served))
    assert texts_of(complete(served, ids)) == [text]
    assert texts_of(complete(served, [PROMPT, PROMPT])) == [text, text]
    assert texts_of(complete(served, [ids])) == [text]


def test_several_prompts_are_answered_in_their_order(served: Served) -> None:
    prompts = ["the cat", "the dog sat on", "Hello"]
    together = complete(served, prompts, n=2, seed=3, temperature=1)
    assert [choice.index for choice in together.choices] == list(range(6))
    alone = [
        text for prompt in prompts for text in texts_of(complete(served, prompt, n=2, seed=3, temperature=1))
    ]
    assert texts_of(together) == alone
    assert together.usage.prompt_tokens == sum(len(served.token_ids(prompt)) for prompt in prompts)


def test_the_chunks_of_a_stream_make_the_completion(served: Served) -> None:
    chunks = list(complete(served, stream=True, stream_options={"include_usage": True}))
    *pieces, usage = chunks
    assert "".join(chunk.choices[0].text for chunk in pieces) == texts_of(complete(served))[0]
    assert [chunk.choices[0].finish_reason for chunk in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert usage.choices == []
    assert usage.usage.completion_tokens == 8


def test_a_stream_of_several_prompts_carries_their_indices(served: Served) -> None:
    texts = ["", ""]
    for chunk in complete(served, ["the cat", "the dog"], stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == texts_of(complete(served, ["the cat", "the dog"]))


def test_an_echo_puts_the_prompt_in_front(served: Served) -> None:
    (text,) = texts_of(complete(served))
    assert texts_of(complete(served, echo=True)) == [PROMPT + text]
    assert texts_of(complete(served, served.token_ids(PROMPT), echo=True)) == [PROMPT + text]
    assert (
        "".join(chunk.choices[0].text for chunk in complete(served, echo=True, stream=True)) == PROMPT + text
    )


def test_an_echo_alone_generates_nothing(served: Served) -> None:
    completion = complete(served, echo=True, max_tokens=0)
    assert texts_of(completion) == [PROMPT]
    assert completion.usage.completion_tokens == 0
    assert completion.choices[0].finish_reason == "length"


def test_log_probabilities_name_tokens_offsets_and_rivals(served: Served) -> None:
    completion = complete(served, logprobs=3)
    logprobs = completion.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == 8
    assert logprobs.text_offset[0] == 0
    assert logprobs.text_offset == sorted(logprobs.text_offset)
    for token, value, rivals in zip(
        logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
    ):
        assert rivals[token] == value == max(rivals.values())
        assert sum(map(math.exp, rivals.values())) <= 1 + 1e-5


def test_echoed_log_probabilities_begin_with_none(served: Served) -> None:
    completion = complete(served, echo=True, max_tokens=0, logprobs=1)
    logprobs = completion.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs[0] is None
    assert all(value <= 0 for value in logprobs.token_logprobs[1:])
    assert "".join(logprobs.tokens) == PROMPT
    assert [PROMPT[offset] for offset in logprobs.text_offset] == [token[0] for token in logprobs.tokens]


def test_log_probabilities_of_a_prompt_are_those_of_generating_it(served: Served) -> None:
    generated = complete(served, max_tokens=6, logprobs=1)
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


def test_prompt_log_probabilities_are_at_every_position_but_the_first(served: Served) -> None:
    completion = complete(served, max_tokens=1, extra={"prompt_logprobs": 2})
    positions = completion.choices[0].model_dump()["prompt_logprobs"]
    ids = served.token_ids(PROMPT)
    assert len(positions) == len(ids)
    assert positions[0] is None
    for token, entries in zip(ids[1:], positions[1:], strict=True):
        assert str(token) in entries
        assert 2 <= len(entries) <= 3


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


def test_a_stop_string_ends_the_text(served: Served) -> None:
    extra = {"regex": "[a-z]{30}"}
    (whole,) = texts_of(complete(served, max_tokens=30, extra=extra, temperature=1, seed=1))
    stopped = complete(served, max_tokens=30, extra=extra, temperature=1, seed=1, stop=[whole[9:11], "0"])
    assert texts_of(stopped) == [whole[: whole.index(whole[9:11])]]
    assert stopped.choices[0].finish_reason == "stop"


def test_best_of_may_be_n(served: Served) -> None:
    assert len(complete(served, n=2, best_of=2, temperature=1).choices) == 2


@pytest.mark.parametrize("fields", [{"suffix": "the end"}, {"best_of": 3}], ids=str)
def test_unsupported_fields_are_named(served: Served, fields: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(served, **fields)
    assert caught.value.param == next(iter(fields))


@pytest.mark.parametrize("prompt", ["", [], [[]], [99999], ["a", 1], [-1]], ids=str)
def test_an_invalid_prompt_is_refused(served: Served, prompt: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(served, prompt)
    assert caught.value.param == "prompt"
