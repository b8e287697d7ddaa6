"""What clients of OpenAI's and vLLM's servers expect besides the completions themselves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from http_world import HELLO, MODEL, HttpWorld, http_world, last_prompt
from openai.types import Completion, CompletionUsage, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from tiny_model import CHATML

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
THINKS = CHATML + "{% if enable_thinking %}<think>\n{% elif enable_thinking is defined %}</think>{% endif %}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def thinker() -> AsyncIterator[HttpWorld]:
    async with http_world(THINKS, context_length=1024) as world:
        yield world


async def post(world: HttpWorld, path: str, **fields: Any) -> Any:
    body = {"messages": HELLO, "prompt": "Hello", **fields}
    response = await world.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response


async def chunks(world: HttpWorld, path: str, **fields: Any) -> list[Any]:
    response = await post(world, path, stream=True, **fields)
    data = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert data.pop() == "[DONE]"
    return [json.loads(each) for each in data]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_whole_and_streamed_replies_have_the_same_fingerprint(world: HttpWorld, path: str) -> None:
    world.script = world.says("the cat")
    whole = (await post(world, path)).json()
    assert whole["system_fingerprint"].startswith("fp_")
    streamed = {chunk["system_fingerprint"] for chunk in await chunks(world, path)}
    assert streamed == {whole["system_fingerprint"]}


async def test_a_deterministic_server_has_another_fingerprint(world: HttpWorld) -> None:
    world.script = world.says("the cat")
    async with http_world(deterministic=True) as other:
        other.script = other.says("the cat")
        replies = [(await post(each, CHAT)).json()["system_fingerprint"] for each in (world, other)]
    assert replies[0] != replies[1]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("kind", ["string", "token", "none"])
async def test_a_stream_says_what_stopped_it_as_a_whole_reply_does(
    world: HttpWorld, path: str, kind: str
) -> None:
    world.script = world.says("the cat sat")
    (token,) = world.ids(" cat")
    fields: dict[str, dict[str, Any]] = {
        "string": {"stop": ["cat"]},
        "token": {"stop_token_ids": [token]},
        "none": {},
    }
    whole = (await post(world, path, **fields[kind])).json()["choices"][0]
    *others, last = [chunk["choices"][0] for chunk in await chunks(world, path, **fields[kind])]
    assert whole["stop_reason"] == last["stop_reason"] == {"string": "cat", "token": token}.get(kind)
    assert last["finish_reason"] == "stop"
    assert not any("stop_reason" in choice for choice in others)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_s_headers_have_its_id(world: HttpWorld, path: str, stream: bool) -> None:
    world.script = world.says("the cat")
    response = await post(world, path, stream=stream)
    body = response.text.partition("\n")[0].removeprefix("data: ")
    assert response.headers["x-request-id"] == json.loads(body)["id"]
    assert response.headers["content-type"].partition(";")[0] == (
        "text/event-stream" if stream else "application/json"
    )
    assert not stream or response.headers["x-accel-buffering"] == "no"


async def test_openai_s_client_knows_the_request_s_id(world: HttpWorld) -> None:
    world.script = world.says("the cat")
    completion = await world.client.chat.completions.create(model=MODEL, messages=HELLO)
    assert completion._request_id == completion.id


@pytest.mark.parametrize(
    "media_type", ["application/json", "application/json; charset=utf-8", "Application/JSON", "text/x+json"]
)
async def test_json_is_taken_by_each_of_its_names(world: HttpWorld, media_type: str) -> None:
    world.script = world.says("the cat")
    response = await world.http.post(
        COMPLETIONS, content=b'{"prompt": "a"}', headers={"content-type": media_type}
    )
    assert response.status_code == 200


@pytest.mark.parametrize("media_type", ["application/x-yaml", "text/plain", "multipart/form-data"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize", "/cache/pin"])
async def test_another_content_type_is_refused_with_the_right_one(
    world: HttpWorld, media_type: str, path: str
) -> None:
    response = await world.http.post(path, content=b'{"prompt": "a"}', headers={"content-type": media_type})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (415, "unsupported_media_type")
    assert media_type in error["message"] and "application/json" in error["message"]


async def test_a_whole_number_may_be_written_with_a_point_or_an_exponent(world: HttpWorld) -> None:
    world.script = world.says("the cat sat on the mat")
    numbers = b'"max_tokens": 3.0, "n": 10e-1, "seed": -5E0, "temperature": 1.0, "stop_token_ids": [9.0]'
    response = await world.http.post(COMPLETIONS, content=b'{"prompt": [[5.0, 6], [1e1]], %s}' % numbers)
    assert response.json()["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 3,
        "completion_tokens": 6,
        "total_tokens": 9,
        "prompt_tokens_details": None,
    }
    for wrong in (b"3.5", b'"3"', b"1e30", b"1e999", b"true", b"[3.0]"):
        response = await world.http.post(COMPLETIONS, content=b'{"prompt": "a", "max_tokens": %s}' % wrong)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "max_tokens"


async def test_no_alternatives_may_be_asked_for_without_log_probabilities(world: HttpWorld) -> None:
    world.script = world.says("the cat")
    choice = (await post(world, CHAT, top_logprobs=0)).json()["choices"][0]
    assert choice["logprobs"] is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("echo", True),
        ("thinking_token_budget", 100),
        ("logprob_token_ids", [5]),
        ("repetition_detection", {"max_pattern_size": 3}),
        ("return_prompt_text", True),
        ("functions", [{"name": "f"}]),
    ],
)
async def test_unsupported_fields_are_refused_not_ignored(world: HttpWorld, field: str, value: Any) -> None:
    response = await world.http.post(CHAT, json={"messages": HELLO, field: value})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (field, "unsupported_parameter")
    assert f"{field} is {json.dumps(value, separators=(',', ':'))}, " in error["message"]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "functions",
            [{"name": "f"}],
            'functions is [{"name":"f"}], which is not supported. '
            'Give each as one of tools: {"type": "function", "function": …}.',
        ),
        (
            "bad_words",
            ["x" * 99],
            f'bad_words is ["{"x" * 58}…, which is not supported. '
            "Give the ids of their tokens (from POST /tokenize) a logit_bias of -100.",
        ),
        (
            "chat_template",
            "{{ x }}",
            'chat_template is "{{ x }}", which is not supported. '
            "The model's own is used: set its variables by chat_template_kwargs, or send the "
            "rendered text to /v1/completions.",
        ),
    ],
)
async def test_a_refused_field_is_named_with_its_value_and_a_replacement(
    world: HttpWorld, field: str, value: Any, message: str
) -> None:
    response = await world.http.post(CHAT, json={"messages": HELLO, field: value})
    assert response.json()["error"]["message"] == message


THOUGHTS = "<think>\nLet me see.\n</think>\n\nIt is fine."


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_goes_by_one_name_and_is_counted(thinker: HttpWorld, stream: bool) -> None:
    thinker.script = thinker.says(THOUGHTS)
    if stream:
        found = await chunks(thinker, CHAT, stream_options={"include_usage": True})
        usage = found[-1]["usage"]
        messages = [chunk["choices"][0]["delta"] for chunk in found if chunk["choices"]]
    else:
        whole = (await post(thinker, CHAT)).json()
        usage, messages = whole["usage"], [whole["choices"][0]["message"]]
    assert "".join(message.get("reasoning_content") or "" for message in messages) == "Let me see."
    assert not any("reasoning" in message for message in messages)
    before = len(thinker.ids(THOUGHTS.partition("\n\n")[0]))
    assert usage["completion_tokens_details"] == {"reasoning_tokens": before}
    assert before < usage["completion_tokens"]


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_goes_by_its_other_name_where_the_server_says_so(stream: bool) -> None:
    async with http_world(THINKS, context_length=1024, reasoning_field="reasoning") as thinker:
        thinker.script = thinker.says(THOUGHTS)
        if stream:
            messages = [chunk["choices"][0]["delta"] for chunk in await chunks(thinker, CHAT)]
        else:
            messages = [(await post(thinker, CHAT)).json()["choices"][0]["message"]]
    assert "".join(message.get("reasoning") or "" for message in messages) == "Let me see."
    assert not any("reasoning_content" in message for message in messages)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_a_message_may_have_its_reasoning_by_either_name(name: str) -> None:
    template = CHATML.replace("{{ message.content }}", "{{ message.reasoning_content }}{{ message.content }}")
    async with http_world(template) as world:
        turns = [*HELLO, {"role": "assistant", "content": "Fine.", name: "Let me see."}, *HELLO]
        await post(world, CHAT, messages=turns)
        assert "Let me see.Fine." in last_prompt(world)


async def test_a_reply_cut_within_its_reasoning_has_only_reasoning(thinker: HttpWorld) -> None:
    thinker.script = thinker.says(THOUGHTS)
    usage = (await post(thinker, CHAT, max_tokens=6)).json()["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == usage["completion_tokens"] == 6


async def test_a_reply_without_reasoning_counts_none(thinker: HttpWorld) -> None:
    thinker.script = thinker.says("It is fine.")
    usage = (await post(thinker, CHAT)).json()["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_may_be_left_out_of_the_answer(thinker: HttpWorld, stream: bool) -> None:
    thinker.script = thinker.says(THOUGHTS)
    text = (await post(thinker, CHAT, include_reasoning=False, stream=stream)).text
    assert "fine" in text and "see" not in text


@pytest.mark.parametrize(
    ("fields", "ending"),
    [
        ({"reasoning_effort": "none"}, "</think>"),
        ({"reasoning_effort": "low"}, "<think>\n"),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "<think>\n"),
        ({}, "<|im_start|>assistant\n"),
    ],
)
async def test_the_effort_turns_reasoning_on_and_off(thinker: HttpWorld, fields: Any, ending: str) -> None:
    thinker.script = thinker.says("It is fine.")
    await post(thinker, CHAT, **fields)
    assert last_prompt(thinker).endswith(ending)


async def test_verbosity_is_a_variable_of_the_template() -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}|{{ verbosity }}"
    async with http_world(template) as world:
        for fields, seen in (
            ({"verbosity": "low"}, "low"),
            ({"verbosity": "low", "chat_template_kwargs": {"verbosity": "mute"}}, "mute"),
            ({}, ""),
        ):
            await post(world, CHAT, **fields)
            text = last_prompt(world)
            assert text.partition("|")[2] == seen


REQUESTS: list[dict[str, Any]] = [
    {},
    {"n": 3, "max_tokens": 4},
    {"logprobs": True, "top_logprobs": 2, "stop": ["sat"]},
    {"tools": [{"type": "function", "function": {"name": "look"}}]},
    {"tools": [{"type": "function", "function": {"name": "look"}}], "logprobs": True, "n": 2},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
]
SAID = ["the cat sat", '<tool_call>\n{"name": "look", "arguments": {"a": 1}}\n</tool_call>', THOUGHTS]


@pytest.mark.parametrize("fields", REQUESTS, ids=str)
@pytest.mark.parametrize("said", SAID, ids=["text", "call", "reasoning"])
async def test_chats_have_the_form_that_openai_s_types_say(
    thinker: HttpWorld, fields: dict[str, Any], said: str
) -> None:
    thinker.script = thinker.says(said)
    for chunk in await chunks(thinker, CHAT, **fields):
        ChatCompletionChunk.model_validate(chunk)
    fields = {name: value for name, value in fields.items() if name != "stream_options"}
    ChatCompletion.model_validate((await post(thinker, CHAT, **fields)).json())


@pytest.mark.parametrize(
    "fields",
    [{}, {"logprobs": 2}, {"prompt": ["a", [5, 6]], "n": 2}, {"echo": True, "max_tokens": 3}],
    ids=str,
)
async def test_completions_have_the_form_that_openai_s_types_say(world: HttpWorld, fields: Any) -> None:
    world.script = world.says("the cat sat")
    Completion.model_validate((await post(world, COMPLETIONS, **fields)).json())
    streamed = await chunks(world, COMPLETIONS, stream_options={"include_usage": True}, **fields)
    for chunk in streamed:
        for choice in chunk["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"  # null until the end, as OpenAI's
        Completion.model_validate(chunk)
    assert CompletionUsage.model_validate(streamed[-1]["usage"]).completion_tokens


async def test_models_have_the_form_that_openai_s_types_say(world: HttpWorld) -> None:
    listed = (await world.http.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [Model.model_validate(each).id for each in listed["data"]] == [MODEL]
