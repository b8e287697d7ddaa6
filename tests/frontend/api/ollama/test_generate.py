"""POST /api/generate and the fields that it shares with /api/chat."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import ollama
import pytest
import pytest_asyncio
from arbora.frontend.api.ollama.options import MIN_P, TEMPERATURE, TOP_K, TOP_P
from arbora.frontend.api.ollama.protocol import Options
from http_world import MODEL, last_generate, last_prompt
from ollama_world import OllamaWorld, ollama_world

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[OllamaWorld]:
    async with ollama_world() as world:
        world.says("Fine.")
        yield world


async def test_a_prompt_is_a_conversation_with_its_system_prompt(world: OllamaWorld) -> None:
    answer = await world.generate(system="Be brief.", prompt="Hello")
    assert (answer.response, answer.done_reason) == ("Fine.", "stop")
    assert last_prompt(world.http_world) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_a_raw_prompt_is_not_rendered_and_its_reply_not_read(world: OllamaWorld) -> None:
    world.says("<think>\nHm.\n</think>\n\nFine.")
    try:
        raw, read = await world.generate(raw=True, prompt="Hello"), await world.generate()
    finally:
        world.says("Fine.")
    assert raw.response.startswith("<think>") and raw.thinking is None
    assert (read.response, read.thinking) == ("Fine.", "Hm.")
    await world.generate(raw=True, prompt="Hello")
    assert last_prompt(world.http_world) == "Hello"


async def test_a_model_without_a_template_gets_the_prompt_as_it_is() -> None:
    async with ollama_world(None) as world:
        assert (await world.generate(prompt="Hello")).done
        assert last_prompt(world.http_world) == "Hello"


async def test_options_reach_the_scheduler(world: OllamaWorld) -> None:
    options = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.8,
        "min_p": 0.1,
        "seed": 3,
        "num_predict": 9,
        "repeat_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "num_thread": 4,
        "mirostat": 0,
    }
    await world.generate(options=options)
    sampling = last_generate(world.http_world).sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.5, 7, 0.8, 0.1)
    assert (sampling.seed, sampling.max_tokens, sampling.repetition_penalty) == (3, 9, 1.2)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.3, 0.4)


async def test_the_clients_own_options_are_all_known() -> None:
    assert set(ollama.Options.model_fields) <= set(Options.__struct_fields__)


async def test_absent_options_have_ollamas_defaults(world: OllamaWorld) -> None:
    await world.generate()
    sampling = last_generate(world.http_world).sampling
    assert (sampling.temperature, sampling.top_k) == (TEMPERATURE, TOP_K)
    assert (sampling.top_p, sampling.min_p) == (TOP_P, MIN_P)
    await world.generate(options={"temperature": 0, "seed": -1})
    first = last_generate(world.http_world).sampling
    await world.generate(options={"seed": -1})
    assert (first.temperature, first.seed) != (0, last_generate(world.http_world).sampling.seed)


async def test_the_context_limits_prompt_and_reply_together(world: OllamaWorld) -> None:
    await world.generate(options={"num_ctx": 100})
    generate = last_generate(world.http_world)
    assert generate.sampling.max_tokens == 100 - len(generate.prompt) // 4
    for unlimited in (-1, -2, 1 << 40):
        await world.generate(options={"num_predict": unlimited})
        assert last_generate(world.http_world).sampling.max_tokens == 2048 - len(generate.prompt) // 4


async def test_a_context_above_the_models_counts_as_the_models_with_one_warning(
    world: OllamaWorld, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        await world.generate(options={"num_ctx": 131_072})
        generate = last_generate(world.http_world)
        assert generate.sampling.max_tokens == 2048 - len(generate.prompt) // 4
    (warning,) = [each.getMessage() for each in caplog.records if "num_ctx" in each.getMessage()]
    assert warning == "options.num_ctx is 131072, but the model's context has 2048 tokens: taking those"


async def test_a_prompt_above_the_models_context_names_that_and_not_a_larger_num_ctx(
    world: OllamaWorld,
) -> None:
    with pytest.raises(ollama.ResponseError, match="maximum context length is 2048") as caught:
        await world.generate(prompt="cat " * 9000, options={"num_ctx": 131_072})
    assert "num_ctx" not in caught.value.error


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"options": {"num_ctx": 5}}, "options.num_ctx", "raise options.num_ctx"),
        ({"options": {"num_predict": 0}}, "options.num_predict", "at least 1"),
        ({"options": {"temperature": 3}}, "options.temperature", "between 0 and 2"),
        ({"options": {"repeat_penalty": 0}}, "options.repeat_penalty", "0.01"),
        ({"options": {"stop": [""]}}, "options.stop", "empty"),
        ({"options": {"mirostat": 2}}, "options.mirostat", "only 0"),
        ({"options": {"temperatur": 1}}, "options.temperatur", "options.temperature?"),
        ({"options": {"max_tokens": 5}}, "options.max_tokens", "options.num_predict?"),
        ({"options": {"unheard_of": 5}}, "options.unheard_of", "num_predict"),
        ({"temperature": 1}, "temperature", "options.temperature?"),
        ({"response_format": {"type": "json"}}, "response_format", "format?"),
        ({"format": "xml"}, "format", "'json'"),
        ({"format": 5}, "format", "JSON schema"),
        ({"think": "very"}, "think", "'high'"),
        ({"think": True, "raw": True}, "think", "raw"),
        ({"system": "Be brief.", "raw": True}, "system", "raw"),
        ({"suffix": "x"}, "suffix", "filling in the middle"),
        ({"context": [1, 2]}, "context", "/api/chat"),
        ({"images": ["aGk="]}, "images", "text alone"),
        ({"template": "{{ .Prompt }}"}, "template", "raw"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs is true"),
        ({"keep_alive": "5 minutes"}, "keep_alive", "'5m'"),
        ({"complete_json": True}, "complete_json", "reply must match"),
        ({"prompt": "cat " * 3000}, "prompt", "shorten"),
    ],
    ids=str,
)
async def test_a_wrong_field_is_refused_by_name(
    world: OllamaWorld, fields: Any, param: str, words: str
) -> None:
    answer = await world.post("/api/generate", **{"prompt": "Hello", **fields})
    body = answer.json()
    assert (answer.status_code, body["param"]) == (400, param)
    assert words in body["error"]


async def test_images_in_messages_are_refused_by_place(world: OllamaWorld) -> None:
    messages = [{"role": "user", "content": "What is this?", "images": ["aGk="]}]
    with pytest.raises(ollama.ResponseError, match=r"messages\[0\].images") as caught:
        await world.chat(messages=messages)
    assert caught.value.status_code == 400


async def test_an_empty_prompt_loads_or_unloads_the_model(world: OllamaWorld) -> None:
    for keep_alive, reason in (("5m", "load"), (-1, "load"), (0, "unload"), ("0s", "unload")):
        answer = await world.generate(prompt="", keep_alive=keep_alive)
        assert (answer.response, answer.done, answer.done_reason) == ("", True, reason)


async def test_a_name_may_have_the_tag_latest(world: OllamaWorld) -> None:
    for name in (MODEL, f"{MODEL}:latest"):
        assert (await world.generate(model=name)).model == name
    for name in ("other", f"{MODEL}:7b"):
        with pytest.raises(ollama.ResponseError) as caught:
            await world.generate(model=name)
        assert caught.value.status_code == 404
