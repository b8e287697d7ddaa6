"""POST /generate with a scripted scheduler."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from arbora.runtime.messages import Generate
from fake_scheduler import unpacked
from http_world import HELLO, MODEL, HttpWorld, http_world, last_generate
from tiny_model import CHATML

pytestmark = pytest.mark.asyncio(loop_scope="module")
TEXT = "the cat sat on the mat"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(CHATML, context_length=1024) as world:
        yield world


async def generated(world: HttpWorld, **body: Any) -> Any:
    answer = await world.http.post("/generate", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def events(world: HttpWorld, **body: Any) -> tuple[list[Any], Any]:
    """The events of the choices, and the last one."""
    answer = await world.http.post("/generate", json={**body, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    *found, last, done = answer.text.strip().split("\n\n")
    assert done == "data: [DONE]"
    parsed = [json.loads(event.removeprefix("data: ")) for event in (*found, last)]
    return parsed[:-1], parsed[-1]


async def test_ids_reach_the_scheduler_and_exact_ids_come_back(world: HttpWorld) -> None:
    world.script = world.says(TEXT)
    prompt = world.ids("How are you?")
    body = await generated(world, prompt_token_ids=prompt, temperature=0)
    assert unpacked(last_generate(world).prompt) == prompt
    (choice,) = body["choices"]
    assert choice["token_ids"] == [*world.ids(TEXT), world.tokenizer.eos_tokens[0]]
    assert (choice["text"], choice["finish_reason"]) == (TEXT, "stop")
    counts = {"prompt_tokens": len(prompt), "cached_tokens": 0, "written_tokens": len(prompt)}
    usage = {**counts, "completion_tokens": len(choice["token_ids"])}
    assert (body["usage"], body["model"], body["prompt_token_ids"]) == (usage, MODEL, None)


async def test_texts_and_messages_show_the_ids_that_they_became(world: HttpWorld) -> None:
    for fields in ({"prompt": "How are you?"}, {"messages": HELLO}):
        body = await generated(world, return_prompt_token_ids=True, **fields)
        assert body["prompt_token_ids"] == [unpacked(last_generate(world).prompt)]
    assert "<|im_start|>assistant" in world.text(body["prompt_token_ids"][0])


async def test_lists_of_prompts_have_n_choices_each(world: HttpWorld) -> None:
    before = len(world.running.of_kind(Generate))
    for lists in ({"prompt": ["one", "two"]}, {"prompt_token_ids": [[1, 2], [3]]}):
        body = await generated(world, n=2, **lists)
        places = [(choice["index"], choice["prompt_index"]) for choice in body["choices"]]
        assert places == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert len(world.running.of_kind(Generate)) == before + 8


async def test_log_probabilities_are_by_id(world: HttpWorld) -> None:
    body = await generated(world, prompt_token_ids=[5, 6, 7], logprobs=2, prompt_logprobs=1)
    (choice,) = body["choices"]
    assert choice["logprobs"] == pytest.approx([-token / 100 for token in choice["token_ids"]])
    assert [top[0][0] for top in choice["top_logprobs"]] == choice["token_ids"]
    assert all(len(top) == 2 for top in choice["top_logprobs"])
    assert choice["prompt_logprobs"] == [None, pytest.approx(-0.06), pytest.approx(-0.07)]
    assert [len(top) for top in choice["prompt_top_logprobs"]] == [0, 1, 1]


async def test_a_stream_has_the_same_text_ids_and_log_probabilities(world: HttpWorld) -> None:
    world.script = world.says(TEXT, "Hello, how are you?")
    fields: Any = {"prompt": "Hello", "n": 2, "logprobs": 1, "seed": 1}
    whole = await generated(world, **fields)
    parts, end = await events(world, **fields)
    for choice in whole["choices"]:
        own = [part for part in parts if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in own) == choice["text"]
        for name in ("token_ids", "logprobs", "top_logprobs"):
            assert [each for part in own for each in part[name]] == choice[name]
        assert own[-1]["finish_reason"] == "stop"
    assert end["usage"] == whole["usage"]
    world.script = world.says(TEXT)


@pytest.mark.parametrize("stop", [" sat on", "at s", "cat on", "mat", "\ufffd"], ids=repr)
async def test_no_id_of_a_stream_is_taken_back_by_a_stop_string(world: HttpWorld, stop: str) -> None:
    world.script = world.says(TEXT)
    fields: Any = {"prompt": "Hello", "stop": [stop], "logprobs": 0}
    (choice,) = (await generated(world, **fields))["choices"]
    parts, _ = await events(world, **fields)
    assert [token for part in parts for token in part["token_ids"]] == choice["token_ids"]
    assert [value for part in parts for value in part["logprobs"]] == choice["logprobs"]
    assert "".join(part["text"] for part in parts) == choice["text"] == TEXT.partition(stop)[0]
    assert parts[-1].get("stop_reason") == choice["stop_reason"] == (stop if stop in TEXT else None)


async def test_sampling_fields_and_constraints_reach_the_scheduler(world: HttpWorld) -> None:
    await generated(
        world, prompt="Hello", max_tokens=7, top_k=3, seed=5, min_p=0.1, logit_bias={"4": 1}, regex="[ab]+"
    )
    generate = last_generate(world)
    sampling = generate.sampling
    assert (sampling.max_tokens, sampling.top_k, sampling.seed, sampling.min_p) == (7, 3, 5, 0.1)
    assert sampling.logit_bias == {4: 1.0}
    assert generate.grammar is not None and generate.grammar.kind == "regex"
    await generated(world, prompt="Hello", json_schema={"type": "object"})
    assert last_generate(world).grammar.param == "json_schema"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "prompt", "exactly one"),
        ({"prompt": "a", "messages": HELLO}, "prompt", "prompt and messages"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt_token_ids": [[]]}, "prompt_token_ids", "no tokens"),
        ({"prompt_token_ids": [1, [2]]}, "prompt_token_ids", "mixes"),
        ({"prompt_token_ids": [1 << 20]}, "prompt_token_ids", "1048576"),
        ({"prompt_token_ids": [-1]}, "prompt_token_ids", "-1"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "20"),
        ({"prompt": "a", "stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "stream"),
        ({"prompt": "a", "max_tokens": 5000}, "max_tokens", "1024"),
        ({"text": "a"}, "text", "prompt?"),
        ({"prompt": "a", "sampling_params": {"max_new_tokens": 5}}, "sampling_params", "beside"),
        ({"prompt": "a", "regx": "a"}, "regx", "regex?"),
    ],
    ids=str,
)
async def test_a_wrong_field_is_refused_by_name(world: HttpWorld, body: Any, param: str, words: str) -> None:
    answer = await world.http.post("/generate", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert words in error["message"]


async def test_a_stream_sends_each_step_at_once(world: HttpWorld) -> None:
    world.script = world.says(TEXT)
    world.running.pauses = True
    try:
        async with world.http.stream("POST", "/generate", json={"prompt": "Hello", "stream": True}) as answer:
            found = aiter(answer.aiter_lines())
            for token in world.ids(TEXT)[:3]:
                event = json.loads((await anext(found)).removeprefix("data: "))
                assert (event["token_ids"], event["text"]) == ([token], world.text([token]))
                assert await anext(found) == ""
                world.running.gate.set()
    finally:
        world.running.pauses = False
        world.running.gate.set()
