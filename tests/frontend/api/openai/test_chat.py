"""Chat completions as OpenAI's own client sees them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pydantic
import pytest
from arbora.frontend.core.prepare import cache_namespace
from arbora.runtime.messages import Finish, Generate
from fake_scheduler import unpacked
from http_world import HELLO, MODEL, HttpWorld, last_generate, last_prompt

pytestmark = pytest.mark.asyncio(loop_scope="module")
FINE = "I am fine, thank you."


class City(pydantic.BaseModel):
    city: str


@pytest.fixture(autouse=True)
def fresh_script(world: HttpWorld) -> None:
    world.script = world.says(FINE)
    world.running.received.clear()


async def create(world: HttpWorld, **fields: Any) -> Any:
    fields = {"model": MODEL, "messages": HELLO, **fields}
    return await world.client.chat.completions.create(**fields)


async def stream(world: HttpWorld, **fields: Any) -> list[Any]:
    return [chunk async for chunk in await create(world, stream=True, **fields)]


async def events(world: HttpWorld, **fields: Any) -> list[str]:
    """The data lines of a stream."""
    body = {"model": MODEL, "messages": HELLO, "stream": True, **fields}
    response = await world.http.post("/v1/chat/completions", json=body)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]


async def test_a_reply_comes_whole(world: HttpWorld) -> None:
    completion = await create(world)
    choice = completion.choices[0]
    assert (choice.index, choice.message.role, choice.message.content) == (0, "assistant", FINE)
    assert choice.finish_reason == "stop"
    assert (completion.object, completion.model) == ("chat.completion", MODEL)
    assert completion.id.startswith("chatcmpl-")


async def test_the_prompt_is_what_the_chat_template_renders(world: HttpWorld) -> None:
    await create(world)
    prompt = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert unpacked(last_generate(world).prompt) == world.ids(prompt)


async def test_usage_counts_the_prompt_the_reply_and_what_was_cached(world: HttpWorld) -> None:
    world.running.cached_tokens = 7
    usage = (await create(world)).usage
    world.running.cached_tokens = 0
    assert usage.prompt_tokens == len(last_generate(world).prompt) // 4
    assert usage.completion_tokens == len(world.ids(FINE)) + 1
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens == 7


async def test_usage_has_cached_tokens_even_if_there_are_none(world: HttpWorld) -> None:
    assert (await create(world)).usage.prompt_tokens_details.cached_tokens == 0


async def test_a_stream_begins_with_the_role_and_ends_with_an_empty_delta(world: HttpWorld) -> None:
    *chunks, done = await events(world)
    decoded = [json.loads(chunk) for chunk in chunks]
    assert decoded[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    ended = {"finish_reason": "stop", "stop_reason": None}
    assert decoded[-1]["choices"] == [{"index": 0, "delta": {}, "logprobs": None, **ended}]
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in decoded[:-1])
    assert all("usage" not in chunk for chunk in decoded)
    assert len({chunk["id"] for chunk in decoded}) == 1
    assert {chunk["object"] for chunk in decoded} == {"chat.completion.chunk"}
    assert done == "[DONE]"


async def test_a_stream_ends_with_usage_on_demand(world: HttpWorld) -> None:
    *chunks, _ = await events(world, stream_options={"include_usage": True})
    *others, last = [json.loads(chunk) for chunk in chunks]
    assert all(chunk["usage"] is None for chunk in others)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len(world.ids(FINE)) + 1
    written = last["usage"]["prompt_tokens"]
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": written}


async def test_usage_may_be_in_every_chunk(world: HttpWorld) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    _, *chunks, _ = await events(world, stream_options=options)
    counts = [json.loads(chunk)["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == len(world.ids(FINE)) + 1


async def test_choices_have_their_own_text_and_seed(world: HttpWorld) -> None:
    world.script = world.says("the cat", "the dog", "the fox")
    completion = await create(world, n=3, seed=40)
    assert [choice.message.content for choice in completion.choices] == ["the cat", "the dog", "the fox"]
    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    sent = world.running.of_kind(Generate)
    assert [message.sampling.seed for message in sent] == [40, 41, 42]
    assert completion.usage.prompt_tokens == len(sent[0].prompt) // 4


async def test_streamed_choices_interleave(world: HttpWorld) -> None:
    world.script = world.says("the cat sat", "the dog sat")
    world.running.gate.clear()
    streaming = asyncio.create_task(stream(world, n=2))
    await world.until(lambda: len(world.running.rows) == 2)
    world.running.gate.set()
    chunks = await streaming
    texts, roles, ends = ["", ""], [0, 0], [0, 0]
    order = []
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            roles[choice.index] += choice.delta.role == "assistant"
            ends[choice.index] += choice.finish_reason == "stop"
            order.append(choice.index)
    assert texts == ["the cat sat", "the dog sat"]
    assert roles == ends == [1, 1]
    assert order != sorted(order)


async def test_without_a_seed_requests_differ(world: HttpWorld) -> None:
    await create(world)
    await create(world)
    first, second = [message.sampling.seed for message in world.running.of_kind(Generate)]
    assert first != second


async def test_max_tokens_ends_a_reply_with_length(world: HttpWorld) -> None:
    completion = await create(world, max_completion_tokens=2)
    assert completion.choices[0].finish_reason == "length"
    assert completion.usage.completion_tokens == 2
    assert FINE.startswith(completion.choices[0].message.content)


async def test_the_reply_may_fill_the_context_by_default(world: HttpWorld) -> None:
    await create(world)
    sent = last_generate(world)
    assert sent.sampling.max_tokens == 256 - len(sent.prompt) // 4


async def test_a_stop_string_ends_the_reply_before_it(world: HttpWorld) -> None:
    world.script = world.says("one two three four")
    choice = (await create(world, stop=["three"])).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("one two ", "stop")


async def test_the_scheduler_is_told_that_a_stop_string_ended_the_reply(world: HttpWorld) -> None:
    world.script = world.says("one two three four and more")
    world.running.tokens_per_step = len(world.ids("one two three four"))
    world.running.pauses = True
    completion = await create(world, stop="three")
    await world.until(lambda: bool(world.running.of_kind(Finish)))
    world.running.tokens_per_step, world.running.pauses = 1, False
    world.running.gate.set()
    assert completion.usage.completion_tokens < len(world.ids("one two three four"))


async def test_a_stop_string_is_returned_on_demand(world: HttpWorld) -> None:
    world.script = world.says("one two three four")
    completion = await create(world, stop="three", extra_body={"include_stop_str_in_output": True})
    assert completion.choices[0].message.content == "one two three"
    assert completion.choices[0].stop_reason == "three"


async def test_tokens_after_a_stop_string_count_nowhere(world: HttpWorld) -> None:
    world.script = world.says("one two three four")
    world.running.tokens_per_step = 100
    completion = await create(world, stop="three", logprobs=True)
    world.running.tokens_per_step = 1
    entries = completion.choices[0].logprobs.content
    assert completion.choices[0].message.content == "one two "
    assert completion.usage.completion_tokens == len(entries)
    assert "four" not in "".join(entry.token for entry in entries)


async def test_a_stop_token_ends_the_reply_and_is_not_shown(world: HttpWorld) -> None:
    tokens = world.ids("the cat sat")
    world.script = lambda request: tokens
    completion = await create(world, extra_body={"stop_token_ids": [tokens[2]]})
    choice = completion.choices[0]
    assert choice.message.content == world.text(tokens[:2])
    assert (choice.finish_reason, choice.stop_reason) == ("stop", tokens[2])
    assert completion.usage.completion_tokens == 3


async def test_logprobs_name_each_token_and_its_alternatives(world: HttpWorld) -> None:
    completion = await create(world, logprobs=True, top_logprobs=2)
    entries = completion.choices[0].logprobs.content
    tokens = [*world.ids(FINE), world.tokenizer.eos_tokens[0]]
    assert [entry.token for entry in entries] == [world.tokenizer.token_text(token) for token in tokens]
    assert entries[0].logprob == pytest.approx(-tokens[0] / 100)
    assert bytes(entries[0].bytes) == world.tokenizer.token_bytes(tokens[0])
    assert [len(entry.top_logprobs) for entry in entries] == [2] * len(tokens)
    assert entries[0].top_logprobs[1].logprob == pytest.approx(-tokens[0] / 100 - 1)


async def test_logprobs_without_alternatives_are_the_tokens_own(world: HttpWorld) -> None:
    completion = await create(world, logprobs=True)
    assert all(entry.top_logprobs == [] for entry in completion.choices[0].logprobs.content)
    assert last_generate(world).sampling.logprobs == 0


async def test_streamed_logprobs_are_those_of_the_whole_reply(world: HttpWorld) -> None:
    whole = (await create(world, logprobs=True, top_logprobs=1)).choices[0].logprobs.content
    chunks = await stream(world, logprobs=True, top_logprobs=1)
    streamed = [
        entry
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs
        for entry in choice.logprobs.content
    ]
    assert streamed == whole


async def test_a_scored_conversation_needs_no_reply(world: HttpWorld) -> None:
    completion = await create(
        world, max_tokens=0, extra_body={"prompt_logprobs": 0, "prompt_logprobs_start": 4}
    )
    assert completion.choices[0].message.content == ""
    assert [each is None for each in completion.prompt_logprobs[:6]] == [True] * 4 + [False] * 2


async def test_prompt_logprobs_have_nothing_for_the_first_token(world: HttpWorld) -> None:
    completion = await create(world, extra_body={"prompt_logprobs": 1})
    prompt = unpacked(last_generate(world).prompt)
    first, second, *_ = completion.prompt_logprobs
    assert len(completion.prompt_logprobs) == len(prompt)
    assert first is None
    assert second[str(prompt[1])]["logprob"] == pytest.approx(-prompt[1] / 100)


async def test_a_character_is_never_split_between_chunks(world: HttpWorld) -> None:
    world.script = world.says("naïve 日本語 🙂!")
    chunks = await stream(world)
    parts = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(parts) == "naïve 日本語 🙂!"
    assert not any("\ufffd" in part for part in parts)


@pytest.mark.parametrize("top_p", [0, 1e-50])
async def test_a_top_p_of_nothing_is_greedy(world: HttpWorld, top_p: float) -> None:
    await create(world, temperature=1.3, top_p=top_p)
    sampling = last_generate(world).sampling
    assert (sampling.temperature, sampling.top_p) == (0, 1)


async def test_sampling_parameters_reach_the_scheduler(world: HttpWorld) -> None:
    await create(
        world,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.25,
        frequency_penalty=-0.5,
        logit_bias={"5": -100},
        max_tokens=9,
        extra_body={
            "top_k": 4,
            "min_p": 0.125,
            "repetition_penalty": 1.5,
            "min_tokens": 3,
            "ignore_eos": True,
            "cache_salt": "tenant",
            "priority": 2,
        },
    )
    sent = last_generate(world)
    sampling = sent.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 4, 0.125)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.25, -0.5)
    assert (sampling.repetition_penalty, sampling.logit_bias) == (1.5, {5: -100.0})
    assert (sampling.max_tokens, sampling.min_tokens, sampling.ignore_eos) == (9, 3, True)
    assert (sent.namespace, sent.priority) == (cache_namespace("", "tenant"), 2)


async def test_content_parts_of_text_are_joined(world: HttpWorld) -> None:
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "you"}]
    await create(world, messages=[{"role": "user", "content": parts}])
    assert "user\nHello\nyou<|im_end|>" in last_prompt(world)


async def test_the_final_message_can_be_continued(world: HttpWorld) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "I am"}]
    extra = {"add_generation_prompt": False, "continue_final_message": True}
    await create(world, messages=messages, extra_body=extra)
    assert last_prompt(world).endswith("<|im_start|>assistant\nI am")


async def test_the_next_turn_repeats_the_tokens_that_were_sampled(world: HttpWorld) -> None:
    letters = [token for letter in "I am fine" for token in world.ids(letter)]
    assert letters != world.ids("I am fine")
    world.script = lambda request: letters
    reply = (await create(world)).choices[0].message
    first = unpacked(last_generate(world).prompt)
    messages = [*HELLO, {"role": "assistant", "content": reply.content}, {"role": "user", "content": "ok"}]
    await create(world, messages=messages)
    second = unpacked(last_generate(world).prompt)
    assert second[: len(first) + len(letters)] == first + letters


async def test_the_clients_own_parser_reads_a_constrained_reply(world: HttpWorld) -> None:
    world.script = world.says('{"city": "Paris"}')
    completion = await world.client.chat.completions.parse(model=MODEL, messages=HELLO, response_format=City)
    grammar = last_generate(world).grammar
    assert completion.choices[0].message.parsed == City(city="Paris")
    assert grammar is not None
    assert "city" in json.loads(grammar.text)["properties"]


@pytest.mark.parametrize(
    ("fields", "kind", "text", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", "", "response_format"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"type": "null"}},
                }
            },
            "json_schema",
            '{"type":"null"}',
            "response_format.json_schema.schema",
        ),
        ({"regex": "a+"}, "regex", "a+", "regex"),
        ({"guided_regex": "a+"}, "regex", "a+", "guided_regex"),
        ({"choice": ["yes", "no"]}, "choice", '["yes","no"]', "choice"),
        ({"guided_choice": ["yes"]}, "choice", '["yes"]', "guided_choice"),
        ({"guided_json": {"type": "null"}}, "json_schema", '{"type":"null"}', "guided_json"),
        ({"guided_json": '{"type":"null"}'}, "json_schema", '{"type":"null"}', "guided_json"),
        ({"json_schema": {"type": "null"}}, "json_schema", '{"type":"null"}', "json_schema"),
        ({"json_schema": '{"type":"null"}'}, "json_schema", '{"type":"null"}', "json_schema"),
        ({"grammar": "start:A"}, "grammar", "start:A", "grammar"),
        ({"ebnf": "root::=A"}, "grammar", "root::=A", "ebnf"),
        ({"structured_outputs": {"regex": "b"}}, "regex", "b", "structured_outputs.regex"),
        ({"structured_outputs": {"choice": ["b"]}}, "choice", '["b"]', "structured_outputs.choice"),
        ({"guided_grammar": "start:A"}, "grammar", "start:A", "guided_grammar"),
        ({"structured_outputs": {"grammar": "start:A"}}, "grammar", "start:A", "structured_outputs.grammar"),
        ({"structured_outputs": {"json": {}}}, "json_schema", "{}", "structured_outputs.json"),
    ],
)
async def test_every_way_to_constrain_a_reply_is_one_grammar(
    world: HttpWorld, fields: Any, kind: str, text: str, param: str
) -> None:
    await create(world, extra_body=fields)
    grammar = last_generate(world).grammar
    assert grammar is not None
    assert (grammar.kind, grammar.text.replace(" ", ""), grammar.param) == (kind, text, param)


async def test_a_reply_without_constraint_has_no_grammar(world: HttpWorld) -> None:
    await create(world, response_format={"type": "text"})
    assert last_generate(world).grammar is None


async def test_users_are_tenants_of_their_own_where_there_is_one_key_at_most(world: HttpWorld) -> None:
    tenants = []
    for user in ("ada", "bob", "ada", None):
        await create(world, messages=HELLO, **({"user": user} if user else {}))
        tenants.append(last_generate(world).tenant)
    assert tenants[0] == tenants[2] != tenants[1]
    assert tenants[3] == ""
    assert "ada" not in tenants[0]
