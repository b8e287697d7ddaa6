"""What the next turn of a conversation finds in the cache of a server with all its processes."""

from __future__ import annotations

from typing import Any

import pytest
from served import Served, text_of

WORDS = {"regex": "[a-z ]{24}"}


def say(served: Served, messages: Any, *, extra: dict[str, Any] = WORDS, **fields: Any) -> Any:
    fields = {"max_tokens": 60, "temperature": 1, **fields}
    return served.client.chat.completions.create(
        model=served.model, messages=messages, extra_body=extra, **fields
    )


def streamed(served: Served, messages: Any, **fields: Any) -> tuple[str, Any]:
    chunks = list(say(served, messages, stream=True, stream_options={"include_usage": True}, **fields))
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]), chunks[-1].usage


def next_turn(messages: Any, reply: str, question: str = "and then?") -> Any:
    return [*messages, {"role": "assistant", "content": reply}, {"role": "user", "content": question}]


def cached(usage: Any) -> int:
    return usage.prompt_tokens_details.cached_tokens or 0


def opening(text: str) -> Any:
    return [{"role": "system", "content": f"Talk of {text}."}, {"role": "user", "content": "Hello, dog"}]


def test_every_turn_finds_all_of_the_turns_before(served: Served) -> None:
    messages, before = opening("several turns"), None
    for turn in range(5):
        reply, usage = (
            streamed(served, messages)
            if turn % 2
            else (text_of(answer := say(served, messages)), answer.usage)
        )
        if before is not None:
            assert cached(usage) >= before.total_tokens - 1
        messages, before = next_turn(messages, reply, f"question {turn}"), usage


def test_turns_of_any_text_are_found_whole(served: Served) -> None:
    messages, before = opening("anything"), None
    lost = served.metrics()["arbora_prompt_tokens_rewritten_total"]
    for turn in range(8):
        answer = say(served, messages, extra={"regex": r"[\s\S]{25}"})
        if before is not None:
            assert cached(answer.usage) >= before.total_tokens - 1
        messages, before = next_turn(messages, text_of(answer), f"question {turn}"), answer.usage
    assert served.metrics()["arbora_prompt_tokens_rewritten_total"] == lost


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_cut_by_its_length_is_found(served: Served, stream: bool) -> None:
    messages = opening(f"length {stream}")
    reply, usage = replied(served, messages, stream, max_tokens=9, extra={"regex": "[a-z]{200}"})
    assert usage.completion_tokens == 9
    second = say(served, next_turn(messages, reply))
    assert cached(second.usage) >= usage.total_tokens - 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_cut_by_a_stop_string_is_found_up_to_its_last_whole_token(
    served: Served, stream: bool
) -> None:
    messages = opening(f"stop strings {stream}")
    reply, usage = replied(served, messages, stream, extra={"regex": "[a-y]{12}z[a-y]{12}"}, stop="z")
    assert len(reply) == 12
    second = say(served, next_turn(messages, reply))
    assert (
        cached(second.usage)
        >= usage.prompt_tokens + min(usage.completion_tokens, len(served.token_ids(reply))) - 1
    )


@pytest.mark.parametrize("text", ["naïve 😀 你好", "👩‍👩‍👧 é\n\n  x", "a <b> {c}"])
def test_a_reply_of_any_characters_is_found(served: Served, text: str) -> None:
    messages = opening(text)
    reply, usage = streamed(served, messages, extra={"choice": [text]})
    assert reply == text
    second = say(served, next_turn(messages, reply))
    assert cached(second.usage) >= usage.total_tokens - 1


def test_a_structured_reply_is_found(served: Served) -> None:
    schema: Any = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 0}}}
    schema |= {"required": ["n"], "additionalProperties": False}
    messages = opening("numbers")
    first = say(served, messages, extra={"guided_json": schema})
    second = say(served, next_turn(messages, text_of(first)))
    assert cached(second.usage) >= first.usage.total_tokens - 1


def test_the_same_prompt_again_computes_one_token(served: Served) -> None:
    messages = opening("one thing only")
    first, second = say(served, messages), say(served, messages)
    assert cached(first.usage) < cached(second.usage) == second.usage.prompt_tokens - 1


def test_a_prompt_that_departs_inside_a_page_shares_all_before(served: Served) -> None:
    first = "the cat sat on the mat and the dog sat on the log and"
    served.client.completions.create(model=served.model, prompt=first, max_tokens=1)
    second = served.client.completions.create(model=served.model, prompt=first + " zebra", max_tokens=1)
    assert cached(second.usage) == len(served.token_ids(first))
    assert cached(second.usage) % 16


def test_choices_of_one_prompt_share_it(served: Served) -> None:
    before = served.metrics()["arbora_prompt_tokens_computed_total"]
    completion = say(served, opening("many choices"), n=4)
    computed = served.metrics()["arbora_prompt_tokens_computed_total"] - before
    assert computed <= completion.usage.prompt_tokens + 3 * 16


def test_salts_do_not_share(served: Served) -> None:
    messages = opening("secrets")
    say(served, messages, extra={"cache_salt": "a", **WORDS})
    again = say(served, messages, extra={"cache_salt": "a", **WORDS})
    other = say(served, messages, extra={"cache_salt": "b", **WORDS})
    assert cached(again.usage) == again.usage.prompt_tokens - 1
    assert cached(other.usage) == 0


def replied(served: Served, messages: Any, stream: bool, **fields: Any) -> tuple[str, Any]:
    if stream:
        return streamed(served, messages, **fields)
    answer = say(served, messages, **fields)
    return text_of(answer), answer.usage
