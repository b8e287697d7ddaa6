"""`arbora.Engine` with a small real model: every process is the one that serves."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, assert_type

import arbora
import numpy as np
import pytest
from arbora.frontend.engine.fields import EngineFields
from arbora.frontend.engine.options import engine_config
from tiny_checkpoint import CONTEXT, END_OF_TURN

SHOWN_HALF = re.escape(repr("\ud800"))
HELLO = [{"role": "user", "content": "Hello, how are you today?"}]


def test_a_completion_has_its_tokens_and_how_it_ended(engine: arbora.Engine) -> None:
    completion = engine.generate("The quick brown fox", max_tokens=8, temperature=0, ignore_eos=True)
    assert len(completion.tokens) == 8
    assert completion.text
    assert completion.finish_reason == "length"
    assert completion.usage.completion_tokens == 8
    assert completion.unenforced == []


def test_a_list_of_prompts_gives_the_replies_of_each_alone(engine: arbora.Engine) -> None:
    prompts = [f"the cat sat on the mat {number}" for number in range(10)]
    together = assert_type(engine.generate(prompts, max_tokens=6, seed=3), list[arbora.Completion])
    alone = [engine.generate(prompt, max_tokens=6, seed=3) for prompt in prompts]
    assert [completion.text for completion in together] == [completion.text for completion in alone]


def test_a_prompt_may_opt_out_of_the_cache(engine: arbora.Engine) -> None:
    prompt = "the dog sat on the mat " * 10
    kept_out = [engine.generate(prompt, max_tokens=1, cache_prompt=False) for _ in range(2)]
    assert [completion.usage.cached_tokens for completion in kept_out] == [0, 0]
    first, second = (engine.generate(prompt, max_tokens=1).usage for _ in range(2))
    assert first.cached_tokens < 16 < second.cached_tokens


@pytest.mark.parametrize("name", ["choice", "regex", "grammar", "json_schema", "stop", "cache_salt"])
def test_half_of_a_surrogate_pair_is_refused_by_the_field_s_name(engine: arbora.Engine, name: str) -> None:
    half = "a\ud800"
    value: Any = {"choice": [half], "json_schema": {"const": half}}.get(name, half)
    with pytest.raises(
        arbora.RequestError, match=rf"{name} has '\\ud800' at character 1 of 'a\\ud800'"
    ) as error:
        engine.generate("Hello", **{name: value})
    assert error.value.param == name


def test_half_of_a_surrogate_pair_is_refused_in_prompts_and_messages(engine: arbora.Engine) -> None:
    with pytest.raises(arbora.RequestError, match=f"prompt has {SHOWN_HALF}"):
        engine.generate("a\ud800")
    with pytest.raises(arbora.RequestError, match=rf"messages\[0\] has {SHOWN_HALF}"):
        engine.chat([{"role": "user", "content": "a\ud800"}])


def test_messages_may_come_from_an_iterator(engine: arbora.Engine) -> None:
    messages = [{"role": "user", "content": "the dog"}]
    iterator: Any = iter(messages)
    listed = engine.chat(messages, max_tokens=4, temperature=0)
    iterated = engine.chat(iterator, max_tokens=4, temperature=0)
    assert iterated.text == listed.text


def test_no_prompts_give_no_completions(engine: arbora.Engine) -> None:
    prompts: list[str] = []
    assert engine.generate(prompts) == []


def test_the_parts_of_a_stream_make_the_completion(engine: arbora.Engine) -> None:
    parts = list(engine.stream("the dog", max_tokens=10, seed=1, ignore_eos=True))
    whole = engine.generate("the dog", max_tokens=10, seed=1, ignore_eos=True)
    assert len(parts) > 1
    assert "".join(part.text for part in parts) == whole.text
    assert parts[-1].finish_reason == "length"
    assert parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens == 10


def test_a_stream_that_is_left_early_frees_its_slot(engine: arbora.Engine) -> None:
    for _ in range(20):
        stream = engine.stream("the log", max_tokens=CONTEXT - 10, ignore_eos=True)
        next(stream)
        stream.close()  # type: ignore[attr-defined]
    assert engine.generate("the log", max_tokens=2).tokens


def test_the_next_turn_of_a_chat_starts_where_the_last_one_ended(engine: arbora.Engine) -> None:
    first = engine.chat(HELLO, regex="[a-z ]{40}", seed=5)
    engine.generate("Meanwhile", max_tokens=1)  # its answer follows the last step of the first turn
    turns = [*HELLO, {"role": "assistant", "content": first.text}, {"role": "user", "content": "And you?"}]
    second = engine.chat(turns, max_tokens=4)
    assert second.usage.cached_tokens >= first.usage.prompt_tokens + first.usage.completion_tokens - 1


def test_a_chat_ends_where_the_model_ends_its_turn(engine: arbora.Engine) -> None:
    completion = engine.chat(HELLO, max_tokens=5, logit_bias={END_OF_TURN: 100})
    assert (completion.text, completion.tokens, completion.finish_reason) == ("", [END_OF_TURN], "stop")


def test_a_stop_string_ends_the_text_before_it(engine: arbora.Engine) -> None:
    whole = engine.generate("Hello", max_tokens=20, seed=2, ignore_eos=True).text
    stopped = engine.generate("Hello", max_tokens=20, seed=2, ignore_eos=True, stop=whole[5:8])
    assert stopped.text == whole[: whole.index(whole[5:8])]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", whole[5:8])


def test_logprobs_come_with_each_token(engine: arbora.Engine) -> None:
    completion = engine.generate("Hello", max_tokens=4, temperature=0, ignore_eos=True, logprobs=3)
    assert [entry.token for entry in completion.logprobs] == completion.tokens
    for entry in completion.logprobs:
        assert len(entry.top) == 3
        assert entry.top[0] == (entry.token, entry.logprob)


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ({"choice": ["red", "green"]}, "red|green"),
        ({"grammar": 'start: "(" start ")" | /[ab]/'}, r"\(*([ab]\)*)?"),
        ({"regex": r"[ab]{3}-\d"}, r"[ab]{3}-\d"),
        ({"json_schema": {"type": "boolean"}}, r"\s*(true|false)\s*"),
    ],
    ids=str,
)
def test_a_constraint_is_followed(engine: arbora.Engine, constraint: Any, expected: str) -> None:
    for seed in range(3):
        assert re.fullmatch(expected, engine.generate("Hello", max_tokens=50, seed=seed, **constraint).text)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"temperature": "hot"}, 'temperature is "hot", but must be a number'),
        ({"regex": "a", "choice": ["a"]}, "regex and choice can't be used together"),
        ({"regex": "("}, "is not a regex"),
        ({"json_schema": ["a"]}, "json_schema is a list, but must be true or false or an object"),
        ({"json_schema": {5: 5}}, "A key of json_schema is an integer, but must be a string"),
        ({"json_schema": {"const": object()}}, "json_schema can't be written as JSON"),
        ({"logprobs": "5"}, 'logprobs is "5", but must be an integer'),
        ({"stop": [b"a", {1}]}, "stop[0] is "),
        ({"choice": ["a", 5]}, "choice[1] is 5, but must be a string"),
        ({"choice": []}, "choice must have at least one string, none of them empty"),
        ({"property_order": "random"}, "property_order is 'random', but must be 'schema' or 'any'"),
        ({"unenforced": "allow", "regex": "a"}, "unenforced needs"),
    ],
)
def test_a_request_that_can_not_be_served_says_why(
    engine: arbora.Engine, sampling: Any, expected: str
) -> None:
    with pytest.raises(arbora.RequestError, match=re.escape(expected)):
        engine.generate("Hello", **sampling)


def test_the_sampling_fields_are_all_described() -> None:
    described = re.findall(r"^    (\w+): ", arbora.Sampling.__doc__ or "", re.MULTILINE)
    assert sorted(described) == sorted(arbora.Sampling.__annotations__)


def test_the_options_of_a_chat_are_the_fields_that_are_read() -> None:
    assert set(arbora.ChatOptions.__annotations__) == set(EngineFields.__struct_fields__)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (5, "prompt is 5, but must be a text, a list of token ids"),
        (None, "prompt is None, but must be a text"),
        ([1, "a"], "prompt is [1, 'a'], but must be a text"),
        (["a", 5], "prompt[1] is 5, but must be a text"),
        (["a", []], "prompt[1] must not be empty"),
        ([[1], [1, -1]], "prompt[1]"),
        ([0.5], "prompt[0] is 0.5, but must be a text"),
        ({"role": "user"}, "but must be a text"),
    ],
)
def test_invalid_prompts_are_refused(engine: arbora.Engine, prompt: Any, expected: str) -> None:
    with pytest.raises(arbora.RequestError, match=re.escape(expected)):
        engine.generate(prompt)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ("Hello", "messages is 'Hello', but must be a list such as [{"),
        (5, "messages is 5, but must be a list"),
        (["Hello"], 'messages[0] is "Hello", but must be an object'),
        ([*HELLO, {"role": "user", "content": 3}], "messages[1].content is 3, but must be"),
        ([{"content": "Hello"}], "The required field messages[0].role is missing"),
    ],
)
def test_invalid_messages_are_refused(engine: arbora.Engine, messages: Any, expected: str) -> None:
    with pytest.raises(arbora.RequestError, match=re.escape(expected)):
        engine.chat(messages)


def test_a_misspelt_option_is_a_type_error(engine: arbora.Engine) -> None:
    with pytest.raises(TypeError, match=r"unknown sampling option 'temprature'\. Did you mean temperature\?"):
        engine.generate("Hello", temprature=1)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("response_format", "use json_schema=SCHEMA"),
        ("stream", "call `stream`"),
        ("max_completion_tokens", "use max_tokens"),
    ],
)
def test_a_field_of_the_http_api_names_its_counterpart(
    engine: arbora.Engine, name: str, expected: str
) -> None:
    options: Any = {name: 1}
    with pytest.raises(TypeError, match=f"{name} is no sampling option: {expected}"):
        engine.generate("Hello", **options)


def test_a_misspelt_engine_option_is_a_type_error_with_the_closest_option() -> None:
    with pytest.raises(TypeError, match=r"unknown option 'kv_memroy'\. Did you mean kv_memory\?"):
        arbora.Engine(kv_memroy="1GiB")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="port is an option of `arbora serve` only"):
        arbora.Engine(port=8000)  # type: ignore[call-arg]


def test_sampling_fields_may_come_as_one_argument(engine: arbora.Engine) -> None:
    params = arbora.Sampling(max_tokens=3, temperature=0)
    assert engine.generate("Hello", params).usage.completion_tokens == 3
    assert engine.generate("Hello", params, max_tokens=2).usage.completion_tokens == 2
    assert engine.chat(HELLO, params).usage.completion_tokens <= 3
    assert len(list(engine.stream("Hello", params))) <= 4
    wrong: Any = 16
    with pytest.raises(TypeError, match="the second argument is 16, but must be a Sampling"):
        engine.generate("Hello", wrong)


async def test_every_method_has_an_async_twin(engine: arbora.Engine) -> None:
    whole = assert_type(
        await engine.agenerate("Hello", max_tokens=5, seed=1, ignore_eos=True), arbora.Completion
    )
    parts = [part.text async for part in engine.astream("Hello", max_tokens=5, seed=1, ignore_eos=True)]
    assert "".join(parts) == whole.text
    reply = await engine.achat(HELLO, max_tokens=5, seed=1, ignore_eos=True)
    parts = [part.text async for part in engine.astream_chat(HELLO, max_tokens=5, seed=1, ignore_eos=True)]
    assert (
        "".join(parts)
        == reply.text
        == "".join(part.text for part in engine.stream_chat(HELLO, max_tokens=5, seed=1, ignore_eos=True))
    )


async def test_requests_of_a_running_loop_run_at_the_same_time(engine: arbora.Engine) -> None:
    prompts = ["one", "two", "three"]
    together = await asyncio.gather(*(engine.agenerate(prompt, max_tokens=3, seed=1) for prompt in prompts))
    assert [completion.text for completion in together] == [
        engine.generate(prompt, max_tokens=3, seed=1).text for prompt in prompts
    ]


async def test_a_cancelled_request_ends(engine: arbora.Engine) -> None:
    task = asyncio.create_task(engine.agenerate("Hello", max_tokens=CONTEXT - 10, ignore_eos=True))
    while not engine._thread._server._service.engine.open_requests:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.generate("Hello", max_tokens=1).tokens


def test_an_option_that_can_not_be_used_is_refused_before_anything_starts(model: str) -> None:
    with pytest.raises(arbora.ConfigError, match="max_running 0: expected a whole number"):
        arbora.Engine(model, max_running=0)


def test_an_engine_stores_nothing_and_makes_no_data_directory(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert engine_config(model, {}).data_dir is None
    assert not list(tmp_path.iterdir())


def test_a_list_of_numpy_integers_is_one_prompt(engine: arbora.Engine) -> None:
    assert engine.generate(list(np.array([5, 6, 7])), max_tokens=1).usage.prompt_tokens == 3
