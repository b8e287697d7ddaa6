"""Text completions as OpenAI's own client sees them."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from arbora.frontend.api.openai.completion_answers import STEP_TOKENS
from arbora.frontend.core.replica.connections import Connection
from arbora.frontend.core.reply import MANY_TOKENS
from arbora.frontend.core.text.detokenizer import Detokenizer, TextDelta
from arbora.runtime.messages import Finish, Generate, Message, Tokens
from fake_scheduler import unpacked
from http_world import MODEL, HttpWorld, http_world, last_generate
from openai import BadRequestError

pytestmark = pytest.mark.asyncio(loop_scope="module")
FOX = " brown fox jumps"


@pytest.fixture(autouse=True)
def fresh_script(world: HttpWorld) -> None:
    world.script = world.says(FOX)
    world.running.received.clear()


async def create(world: HttpWorld, **fields: Any) -> Any:
    fields = {"model": MODEL, "prompt": "The quick", **fields}
    return await world.client.completions.create(**fields)


async def test_a_completion_comes_whole(world: HttpWorld) -> None:
    completion = await create(world)
    assert completion.choices[0].text == FOX
    assert completion.choices[0].finish_reason == "stop"
    assert completion.object == "text_completion"
    assert completion.usage.prompt_tokens == len(world.ids("The quick"))


@pytest.mark.parametrize(("path", "param"), [("completions", "prompt"), ("chat/completions", "messages")])
async def test_a_text_is_refused_if_the_model_lacks_one_of_its_tokens(
    monkeypatch: pytest.MonkeyPatch, path: str, param: str
) -> None:
    monkeypatch.setattr("http_world.VOCAB_SIZE", 20)
    async with http_world() as small:
        body = {"prompt": "Hello", "messages": [{"role": "user", "content": "Hello"}]}
        reply = await small.http.post(f"/v1/{path}", json=body)
    assert reply.status_code == 400
    assert f"{param} has the token id" in reply.text and "between 0 and 19" in reply.text


async def test_sixteen_tokens_are_the_default(world: HttpWorld) -> None:
    await create(world)
    assert last_generate(world).sampling.max_tokens == 16


async def test_the_default_length_shrinks_to_what_the_prompt_leaves_of_the_context(world: HttpWorld) -> None:
    await create(world, prompt=[5] * 250)
    assert last_generate(world).sampling.max_tokens == 6


async def test_a_completion_comes_as_a_stream(world: HttpWorld) -> None:
    stream = await create(world, stream=True, stream_options={"include_usage": True})
    *chunks, last = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == FOX
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "stop"
    assert last.choices == []
    assert last.usage.completion_tokens == len(world.ids(FOX)) + 1


async def test_a_stream_ends_with_done(world: HttpWorld) -> None:
    body = {"model": MODEL, "prompt": "The quick", "stream": True}
    text = (await world.http.post("/v1/completions", json=body)).text
    *chunks, done = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert done == "[DONE]"
    assert {json.loads(chunk)["object"] for chunk in chunks} == {"text_completion"}


async def test_a_prompt_may_be_token_ids(world: HttpWorld) -> None:
    await create(world, prompt=[7, 8, 9])
    assert unpacked(last_generate(world).prompt) == [7, 8, 9]


async def test_several_prompts_give_n_choices_each(world: HttpWorld) -> None:
    world.script = world.says("a", "b", "c", "d")
    completion = await create(world, prompt=["The quick", "the cat"], n=2, seed=5)
    assert [choice.text for choice in completion.choices] == ["a", "b", "c", "d"]
    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    sent = world.running.of_kind(Generate)
    assert [world.text(unpacked(message.prompt)) for message in sent] == ["The quick"] * 2 + ["the cat"] * 2
    assert [message.sampling.seed for message in sent] == [5, 6, 5, 6]
    assert completion.usage.prompt_tokens == len(world.ids("The quick")) + len(world.ids("the cat"))


async def test_the_scheduler_is_told_whether_a_client_gets_tokens_as_they_come(world: HttpWorld) -> None:
    await create(world)
    async for _ in await create(world, stream=True):
        pass
    assert [each.is_streamed for each in world.running.of_kind(Generate)] == [False, True]


async def test_more_choices_than_may_ever_wait_at_once_are_refused_with_the_limit() -> None:
    async with http_world(max_waiting=2) as small:
        chat = {"messages": [{"role": "user", "content": "Hi"}]}
        error = await refusal(small, "/v1/chat/completions", **chat, n=3)
        assert error["param"] == "n"
        assert error["message"].startswith("n is 3, but a request may have at most 2, ")
        assert "--max-waiting" in error["message"]
        error = await refusal(small, "/v1/completions", prompt=["a"] * 3)
        assert error["param"] == "prompt"
        assert error["message"].startswith("3 prompts with n of 1 make 3 choices, but")
        error = (await small.http.post("/generate", json={"prompt_token_ids": [[5]] * 3})).json()["error"]
        assert error["param"] == "prompt_token_ids"
        answer = await small.http.post("/v1/chat/completions", json={**chat, "n": 2})
        assert answer.status_code == 200


async def test_a_request_may_have_1024_choices_at_most(world: HttpWorld) -> None:
    error = await refusal(world, "/v1/completions", prompt=["a"] * 33, n=32)
    assert error["message"] == (
        "33 prompts with n of 32 make 1056 choices, but a request may have at most 1024."
    )


async def refusal(world: HttpWorld, path: str, **body: Any) -> Any:
    answer = await world.http.post(path, json=body)
    assert answer.status_code == 400
    return answer.json()["error"]


async def test_several_prompts_may_be_token_ids(world: HttpWorld) -> None:
    completion = await create(world, prompt=[[7, 8], [9]])
    assert [unpacked(message.prompt) for message in world.running.of_kind(Generate)] == [[7, 8], [9]]
    assert len(completion.choices) == 2


async def test_echo_puts_the_prompt_before_the_text(world: HttpWorld) -> None:
    for prompt in ("The quick", world.ids("The quick")):
        assert (await create(world, prompt=prompt, echo=True)).choices[0].text == "The quick" + FOX


async def test_a_long_prompt_is_decoded_for_its_echo_once_and_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[tuple[int, bool]] = []
    push = Detokenizer.push

    def count_tokens(detokenizer: Detokenizer, tokens: Tokens, final: bool) -> TextDelta:
        if len(tokens) > 400:
            decoded.append((len(tokens) // 4, threading.current_thread() is threading.main_thread()))
        return push(detokenizer, tokens, final)

    monkeypatch.setattr(Detokenizer, "push", count_tokens)
    async with http_world(context_length=1 << 15) as world:
        text = "the cat sat on the mat " * 2000
        for prompt in (text, world.ids(text)):
            choices = (await create(world, prompt=prompt, echo=True, n=3)).choices
            assert [choice.text[: len(text)] for choice in choices] == [text] * 3
    assert sum(count for count, _ in decoded) == len(world.ids(text)) > STEP_TOKENS
    assert not any(is_on_loop for _, is_on_loop in decoded)


async def test_a_stream_echoes_the_prompt_once_for_each_choice(world: HttpWorld) -> None:
    texts = ["", ""]
    async for chunk in await create(world, echo=True, n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["The quick" + FOX] * 2


async def test_logprobs_are_parallel_lists(world: HttpWorld) -> None:
    choice = (await create(world, logprobs=2)).choices[0]
    ids = [*world.ids(FOX), world.tokenizer.eos_tokens[0]]
    logprobs = choice.logprobs
    assert logprobs.tokens == [world.tokenizer.token_text(token) for token in ids]
    assert logprobs.token_logprobs == pytest.approx([-token / 100 for token in ids])
    assert [len(top) for top in logprobs.top_logprobs] == [2] * len(ids)
    assert [choice.text[offset:] for offset in logprobs.text_offset[:2]] == [
        FOX,
        FOX[len(logprobs.tokens[0]) :],
    ]


async def test_zero_logprobs_are_the_tokens_own(world: HttpWorld) -> None:
    logprobs = (await create(world, logprobs=0)).choices[0].logprobs
    assert logprobs.top_logprobs[0] == {logprobs.tokens[0]: logprobs.token_logprobs[0]}


async def test_echoed_logprobs_begin_with_the_prompts(world: HttpWorld) -> None:
    choice = (await create(world, echo=True, logprobs=1)).choices[0]
    prompt = world.ids("The quick")
    logprobs = choice.logprobs
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs[0] is None
    assert logprobs.token_logprobs[1] == pytest.approx(-prompt[1] / 100)
    pairs = zip(logprobs.tokens[:-1], logprobs.text_offset, strict=False)
    assert all(choice.text.startswith(token, offset) for token, offset in pairs)
    assert "".join(logprobs.tokens[:-1]) == choice.text


async def test_streamed_echoed_logprobs_are_those_of_the_whole_text(world: HttpWorld) -> None:
    whole = (await create(world, echo=True, logprobs=1)).choices[0].logprobs
    tokens: list[str] = []
    offsets: list[int] = []
    async for chunk in await create(world, echo=True, logprobs=1, stream=True):
        tokens += chunk.choices[0].logprobs.tokens
        offsets += chunk.choices[0].logprobs.text_offset
    assert (tokens, offsets) == (whole.tokens, whole.text_offset)


async def test_only_the_event_loop_sends_to_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    senders: list[tuple[type[Message], threading.Thread]] = []
    send = Connection.send

    def noted(connection: Connection, message: Message) -> None:
        senders.append((type(message), threading.current_thread()))
        send(connection, message)

    monkeypatch.setattr(Connection, "send", noted)
    async with http_world(context_length=4096) as world:
        world.script = world.says("one two three")
        world.running.pauses = True  # the scheduler must not end the reply before its stop string is found
        for stream in (False, True):
            world.running.gate.set()
            body = {"model": MODEL, "prompt": [5] * (MANY_TOKENS + 100), "echo": True, "logprobs": 1}
            answer = await world.http.post("/v1/completions", json={**body, "stop": "o", "stream": stream})
            assert answer.status_code == 200
    assert [kind for kind, _ in senders].count(Finish) == 2
    assert {thread for _, thread in senders} == {threading.current_thread()}


async def test_an_echoed_prompt_is_scored_without_output_tokens(world: HttpWorld) -> None:
    completion = await create(world, echo=True, logprobs=0, max_tokens=0)
    choice = completion.choices[0]
    assert (choice.text, choice.finish_reason) == ("The quick", "length")
    assert len(choice.logprobs.tokens) == len(world.ids("The quick"))
    assert completion.usage.completion_tokens == 0


async def test_prompt_logprobs_are_each_prompts_own(world: HttpWorld) -> None:
    completion = await create(world, prompt=[[7, 8], [9]], extra_body={"prompt_logprobs": 0})
    first, second = [choice.prompt_logprobs for choice in completion.choices]
    assert first[0] is None
    assert first[1]["8"]["logprob"] == pytest.approx(-0.08)
    assert second == [None]


async def test_prompt_logprobs_from_a_start_on_are_null_before_it(world: HttpWorld) -> None:
    extra = {"prompt_logprobs": 0, "prompt_logprobs_start": 2}
    completion = await create(world, prompt=[[7, 8, 9, 10], [9, 8, 7]], max_tokens=0, extra_body=extra)
    first, second = [choice.prompt_logprobs for choice in completion.choices]
    assert [each and list(each) for each in first] == [None, None, ["9"], ["10"]]
    assert [each and list(each) for each in second] == [None, None, ["7"]]


async def test_an_echoed_prompt_s_logprobs_may_start_later_too(world: HttpWorld) -> None:
    extra = {"prompt_logprobs_start": 3}
    completion = await create(
        world, prompt=[7, 8, 9, 10], echo=True, logprobs=0, max_tokens=0, extra_body=extra
    )
    logprobs = completion.choices[0].logprobs
    assert logprobs.token_logprobs == [None, None, None, pytest.approx(-0.1)]
    assert logprobs.top_logprobs[:3] == [None, None, None]
    assert len(logprobs.text_offset) == 4


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prompt_logprobs": 0, "prompt_logprobs_start": 3}, "is 3, but the prompt has 3 tokens: .* most 2"),
        ({"prompt_logprobs_start": 1}, "needs prompt_logprobs"),
    ],
)
async def test_a_start_past_the_shortest_prompt_or_of_nothing_is_refused(
    world: HttpWorld, fields: dict[str, int], expected: str
) -> None:
    with pytest.raises(BadRequestError, match=expected) as error:
        await create(world, prompt=[[7, 8, 9, 10], [7, 8, 9]], extra_body=fields)
    assert error.value.param == "prompt_logprobs_start"


async def test_best_of_may_repeat_n(world: HttpWorld) -> None:
    assert len((await create(world, n=2, best_of=2)).choices) == 2
