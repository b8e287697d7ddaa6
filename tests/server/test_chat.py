"""Chat completions, asked with OpenAI's client of a server with all its processes."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from served import CONTEXT, HELLO, Served, text_of

TALK: Any = [
    {"role": "system", "content": "Speak of animals."},
    {"role": "user", "content": "the cat sat"},
    {"role": "assistant", "content": "on the mat"},
    {"role": "user", "content": [{"type": "text", "text": "and the"}, {"type": "text", "text": " dog?"}]},
]
FREE = {"ignore_eos": True}


def chat(served: Served, messages: Any = HELLO, *, extra: dict[str, Any] | None = None, **fields: Any) -> Any:
    return served.client.chat.completions.create(
        model=served.model, messages=messages, extra_body={**FREE, **(extra or {})}, **fields
    )


def test_a_completion_has_the_shape_that_openai_documents(served: Served) -> None:
    completion = chat(served, TALK, max_tokens=5)
    assert completion.id.startswith("chatcmpl-")
    assert completion.object == "chat.completion"
    assert isinstance(completion.created, int)
    assert completion.model == served.model
    (choice,) = completion.choices
    assert (choice.index, choice.message.role, choice.finish_reason) == (0, "assistant", "length")
    assert completion.usage.completion_tokens == 5
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + 5


def test_the_chunks_of_a_stream_make_the_completion(served: Served) -> None:
    asked: Any = {"max_tokens": 16, "temperature": 0}
    whole = chat(served, TALK, **asked)
    chunks = list(chat(served, TALK, stream=True, stream_options={"include_usage": True}, **asked))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    *deltas, usage = chunks
    assert deltas[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in deltas] == [None] * (len(deltas) - 1) + ["length"]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in deltas) == text_of(whole)
    assert all(chunk.usage is None for chunk in deltas)
    assert usage.choices == []
    assert usage.usage.completion_tokens == whole.usage.completion_tokens == 16
    assert usage.usage.prompt_tokens == whole.usage.prompt_tokens


def test_a_stream_ends_with_done(served: Served) -> None:
    body = {"model": served.model, "messages": HELLO, "max_tokens": 3, "stream": True}
    answer = served.http.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, last, end = answer.text.split("\n\n")
    assert (last, end) == ("data: [DONE]", "")
    assert all(json.loads(event.removeprefix("data: ")) for event in events)


def test_greedy_replies_are_the_same_each_time(served: Served) -> None:
    assert len({text_of(chat(served, max_tokens=20, temperature=0)) for _ in range(3)}) == 1


@pytest.mark.parametrize(
    "narrowed",
    [{"top_p": 0}, {"top_p": 1e-50}, {"top_p": 1e-6}, {"extra": {"top_k": 1}}, {"extra": {"min_p": 1.0}}],
    ids=str,
)
def test_a_choice_narrowed_to_one_token_is_greedy(served: Served, narrowed: Any) -> None:
    greedy = text_of(chat(served, max_tokens=16, temperature=0))
    assert text_of(chat(served, max_tokens=16, temperature=1.3, seed=4, **narrowed)) == greedy


def test_a_seed_gives_the_same_reply_again_and_another_seed_another(served: Served) -> None:
    replies = [text_of(chat(served, max_tokens=24, temperature=1, seed=seed)) for seed in (11, 11, 12)]
    assert replies[0] == replies[1] != replies[2]


def test_replies_without_a_seed_differ(served: Served) -> None:
    assert len({text_of(chat(served, max_tokens=24, temperature=1)) for _ in range(3)}) > 1


def test_choices_differ_and_are_those_of_consecutive_seeds(served: Served) -> None:
    several = chat(served, max_tokens=12, temperature=1, seed=5, n=3)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert several.usage.completion_tokens == 36
    alone = [text_of(chat(served, max_tokens=12, temperature=1, seed=5 + index)) for index in range(3)]
    assert [choice.message.content for choice in several.choices] == alone
    assert len(set(alone)) == 3


def test_the_choices_of_a_stream_carry_their_index(served: Served) -> None:
    asked: Any = {"max_tokens": 8, "temperature": 1, "seed": 5, "n": 3}
    texts, roles, reasons = ["", "", ""], [0, 0, 0], [0, 0, 0]
    for chunk in chat(served, stream=True, **asked):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            roles[choice.index] += choice.delta.role == "assistant"
            reasons[choice.index] += choice.finish_reason == "length"
    assert texts == [choice.message.content for choice in chat(served, **asked).choices]
    assert roles == reasons == [1, 1, 1]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_both_names_limit_the_tokens(served: Served, name: str) -> None:
    limit: Any = {name: 7}
    completion = chat(served, **limit)
    assert completion.usage.completion_tokens == 7
    assert completion.choices[0].finish_reason == "length"


def test_the_model_ends_its_turn(served: Served) -> None:
    completion: Any = served.client.chat.completions.create(
        model=served.model, messages=HELLO, logit_bias={"2": 100}, max_tokens=9
    )
    assert (text_of(completion), completion.choices[0].finish_reason) == ("", "stop")
    assert completion.usage.completion_tokens == 1


def test_min_tokens_delays_the_end(served: Served) -> None:
    completion = chat(
        served, extra={"ignore_eos": False, "min_tokens": 6}, logit_bias={"2": 100}, max_tokens=9
    )
    assert completion.usage.completion_tokens == 7
    assert completion.choices[0].finish_reason == "stop"


def test_a_stop_token_ends_the_reply_and_is_named(served: Served) -> None:
    (token,) = served.token_ids("z")
    completion = chat(
        served, extra={"stop_token_ids": [token], "min_tokens": 2}, logit_bias={str(token): 100}, max_tokens=9
    )
    assert completion.choices[0].finish_reason == "stop"
    assert completion.choices[0].stop_reason == token
    assert completion.usage.completion_tokens == 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_list", [False, True])
def test_a_stop_string_ends_the_reply_before_it(served: Served, stream: bool, as_list: bool) -> None:
    asked: Any = {"max_tokens": 40, "seed": 3, "extra": {"regex": "[a-z]{40}"}}
    whole = text_of(chat(served, **asked))
    stop = whole[7:12]  # spans tokens, wherever they end
    stops = ["0", stop, "1", "2"] if as_list else stop
    if stream:
        chunks = list(chat(served, stop=stops, stream=True, **asked))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        reason = chunks[-1].choices[0].finish_reason
    else:
        completion = chat(served, stop=stops, **asked)
        text, reason = text_of(completion), completion.choices[0].finish_reason
        assert completion.choices[0].stop_reason == stop
    assert (text, reason) == (whole[: whole.index(stop)], "stop")


def test_a_stop_string_can_be_left_in(served: Served) -> None:
    asked: Any = {"max_tokens": 40, "seed": 3}
    whole = text_of(chat(served, extra={"regex": "[a-z]{40}"}, **asked))
    kept = chat(
        served, extra={"regex": "[a-z]{40}", "include_stop_str_in_output": True}, stop=whole[7:9], **asked
    )
    assert text_of(kept) == whole[: whole.index(whole[7:9]) + 2]


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


def test_a_stream_has_the_same_log_probabilities(served: Served) -> None:
    asked: Any = {"max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    whole = chat(served, **asked).choices[0].logprobs.content
    streamed = [
        entry
        for chunk in chat(served, stream=True, **asked)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert [entry.token for entry in streamed] == [entry.token for entry in whole]


def test_a_bias_forces_and_bans_tokens(served: Served) -> None:
    (token,) = served.token_ids("z")
    assert text_of(chat(served, max_tokens=5, temperature=1, logit_bias={str(token): 100})) == "zzzzz"
    first = chat(served, max_tokens=1, temperature=0, logprobs=True)
    (likeliest,) = served.token_ids(text_of(first))
    assert text_of(chat(served, max_tokens=1, temperature=0, logit_bias={str(likeliest): -100})) != text_of(
        first
    )


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


def test_a_reply_can_continue_the_last_message(served: Served) -> None:
    opened: Any = [*HELLO, {"role": "assistant", "content": "the quick brown"}]
    go_on = {"continue_final_message": True, "add_generation_prompt": False}
    continued = chat(served, opened, extra=go_on, max_tokens=4, temperature=0)
    prompt = served.http.post("/tokenize", json={"messages": opened, **go_on}).json()["tokens"]
    completion = served.client.completions.create(
        model=served.model, prompt=prompt, max_tokens=4, temperature=0, extra_body=FREE
    )
    assert text_of(continued) == completion.choices[0].text
    assert continued.usage.prompt_tokens == len(prompt)


@pytest.mark.parametrize(
    "text", ["", "héllo wörld 你好 😀👩‍👩‍👧 \u0000\u2028", "a\n\n\tb", "<|im_start|>x<|im_end|>"]
)
def test_any_text_is_served(served: Served, text: str) -> None:
    assert chat(served, [{"role": "user", "content": text}], max_tokens=2).usage.completion_tokens == 2


def test_characters_are_never_cut_in_a_stream(served: Served) -> None:
    wanted = "😀é你👩‍👩‍👧ü"
    chunks = chat(served, extra={"regex": wanted}, max_tokens=60, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(pieces) == wanted
    assert "\ufffd" not in "".join(pieces)


def test_a_long_prompt_is_read_whole(served: Served) -> None:
    words = "the cat sat on the mat and the dog sat on the log. " * 200
    completion = chat(served, [{"role": "user", "content": words}], max_tokens=3, temperature=0)
    assert completion.usage.prompt_tokens > 1000
    assert completion.usage.completion_tokens == 3


def test_without_max_tokens_a_reply_may_fill_the_context(served: Served) -> None:
    words = "the cat sat on the mat and the dog sat on the log. " * 280
    completion = chat(served, [{"role": "user", "content": words}])
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage.total_tokens == CONTEXT


def test_openais_stream_helper_reads_the_stream(served: Served) -> None:
    with served.client.chat.completions.stream(
        model=served.model, messages=HELLO, max_tokens=20, extra_body={"regex": "[a-z]{6}"}
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    text = "".join(event.delta for event in events if event.type == "content.delta")
    assert final.choices[0].message.content == text
    assert re.fullmatch("[a-z]{6}", text)


def test_template_arguments_reach_the_template(served: Served) -> None:
    assert chat(served, extra={"chat_template_kwargs": {"enable_thinking": False}}, max_tokens=2).choices


def test_the_raw_answer_is_json_with_its_length(served: Served) -> None:
    raw = served.client.chat.completions.with_raw_response.create(
        model=served.model, messages=HELLO, max_tokens=2
    )
    assert raw.headers["content-type"] == "application/json"
    assert re.fullmatch(r"chatcmpl-\w+", raw.parse().id)


async def test_the_async_client_is_served_too(served: Served) -> None:
    async with served.async_client() as client:
        stream = await client.chat.completions.create(
            model=served.model, messages=HELLO, max_tokens=4, stream=True, extra_body=FREE
        )
        assert [chunk async for chunk in stream][-1].choices[0].finish_reason == "length"
