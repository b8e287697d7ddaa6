"""Requests that can't be served, and how the errors name the fields at fault."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from arbora.runtime.messages import Generate, Refused
from http_world import HELLO, MODEL, HttpWorld, error_of, refused
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.asyncio(loop_scope="module")
NAMES = st.sampled_from(["type", "function", "name", "role", "content", "json_schema", "schema", "5"])
JSON = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9)
    | NAMES
)
TOOL = {"type": "function", "function": {"name": "look"}}


@pytest.mark.parametrize(
    ("field", "value", "permitted"),
    [
        ("temperature", 2.5, "between 0 and 2"),
        ("temperature", -1, "between 0 and 2"),
        ("top_p", -0.5, "between 0 and 1"),
        ("top_p", 1.5, "between 0 and 1"),
        ("presence_penalty", 3, "between -2 and 2"),
        ("frequency_penalty", -3, "between -2 and 2"),
        ("n", 0, "between 1 and 128"),
        ("n", 129, "between 1 and 128"),
        ("top_k", -2, "at least -1"),
        ("min_p", 1.5, "between 0 and 1"),
        ("repetition_penalty", 0, "between 0.01 and 100"),
        ("min_tokens", -1, "at least 0"),
        ("prompt_logprobs", 21, "between 0 and 20"),
    ],
)
async def test_a_value_out_of_range_is_named_with_its_range(
    world: HttpWorld, field: str, value: float, permitted: str
) -> None:
    fields: Any = {field: value}
    for path in ("/v1/chat/completions", "/v1/completions"):
        error = await refused(world, path, **fields)
        assert error["param"] == field
        assert str(value) in error["message"]
        assert permitted in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"512": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias[5]"),
        ({"stop_token_ids": [512]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt_logprobs_start": 0}, "prompt_logprobs_start"),
        ({"prompt_logprobs": 1, "prompt_logprobs_start": -1}, "prompt_logprobs_start"),
        ({"prompt_logprobs": 1, "prompt_logprobs_start": 1.5}, "prompt_logprobs_start"),
        ({"prompt_logprobs": 1, "prompt_logprobs_start": 400}, "prompt_logprobs_start"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [*HELLO, {"role": "tool", "content": "a"}]}, "messages[1].tool_call_id"),
        ({"messages": [{"content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "function_call": {"name": "f"}}]}, "messages[0].function_call"),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "function_call": {"name": "f"},
                        "tool_calls": [{"function": {"name": "f"}}],
                    }
                ]
            },
            "messages[0].function_call",
        ),
        ({"messages": [{"role": "function", "content": "a"}]}, "messages[0].name"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": None, "schema": {}}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_object", "schema": ["a"]}},
            "response_format.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": [1]}}},
            "response_format.json_schema.schema",
        ),
        ({"guided_json": "{"}, "guided_json"),
        ({"json_schema": "{"}, "json_schema"),
        ({"grammar": "a", "ebnf": "b"}, "ebnf"),
        ({"guided_json": {"type": "null"}, "json_schema": {"type": "object"}}, "json_schema"),
        ({"structural_tag": {}}, "structural_tag"),
        ({"choice": []}, "choice"),
        ({"choice": ["a", ""]}, "choice"),
        ({"regex": "a", "choice": ["a"]}, "choice"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"chioce": ["a"]}}, "structured_outputs.chioce"),
        (
            {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
            "structured_outputs.whitespace_pattern",
        ),
        ({"property_order": "random"}, "property_order"),
        ({"unenforced": True}, "unenforced"),
        ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"structural_tag": 5}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag.structures"),
        ({"guided_grammar": "a", "regex": "a"}, "guided_grammar"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "required", "regex": "a"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "b"}}}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"use_beam_search": True}, "use_beam_search"),
    ],
)
async def test_a_chat_request_that_cannot_be_served_names_its_field(
    world: HttpWorld, fields: Any, param: str
) -> None:
    assert (await refused(world, **fields))["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a"] * 1000, "n": 2}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [600]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
    ],
)
async def test_a_completion_request_that_cannot_be_served_names_its_field(
    world: HttpWorld, fields: Any, param: str
) -> None:
    assert (await refused(world, "/v1/completions", **fields))["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": "ten"}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"messages": "Hello"}, "messages"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"stop": [1]}, "stop[0]"),
        ({"stream": "yes"}, "stream"),
        ({"response_format": {"type": 3}}, "response_format.type"),
        ({"logit_bias": {"5": "high"}}, "logit_bias[...]"),
    ],
)
async def test_a_value_of_the_wrong_type_is_named_by_its_path(
    world: HttpWorld, fields: Any, param: str
) -> None:
    error = await refused(world, **fields)
    assert (error["param"], error["code"]) == (param, "invalid_type")


@pytest.mark.parametrize("value", [b"1e999", b'"\xff"', b'"\\ud800"'])
async def test_a_wrong_type_is_named_before_a_field_that_cannot_be_read(
    world: HttpWorld, value: bytes
) -> None:
    body = b'{"messages": [{"role": 5, "content": %s}]}' % value
    response = await world.http.post("/v1/chat/completions", content=body)
    assert response.status_code == 400, response.text


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": ' + b"[" * 200_000,
        b'{"prompt": "a", "whim": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"prompt": "a", "guided_json": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
    ],
)
async def test_a_body_nested_too_deeply_is_refused(world: HttpWorld, body: bytes) -> None:
    response = await world.http.post("/v1/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


@given(
    st.sampled_from(["/v1/chat/completions", "/v1/completions"]),
    st.sampled_from(["stop", "logit_bias", "prompt", "messages", "tools", "guided_json", "response_format"]),
    st.recursive(JSON, lambda children: st.lists(children) | st.dictionaries(NAMES, children)),
)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_no_value_of_a_field_makes_the_server_fail(
    world: HttpWorld, path: str, name: str, value: Any
) -> None:
    body = {"model": MODEL, "messages": HELLO, "prompt": "Hello", "max_tokens": 1, name: value}
    assert (await world.http.post(path, json=body)).status_code in (200, 400)


@pytest.mark.parametrize(
    ("body", "param", "meant"),
    [
        ({"message": HELLO}, "messages", "message"),
        ({"messages": [{"roles": "user", "content": "Hi"}]}, "messages[0].role", "roles"),
        (
            {"messages": HELLO, "tools": [{"type": "function", "function": {"nam": "f"}}]},
            "tools[0].function.name",
            "nam",
        ),
    ],
)
async def test_a_misspelt_required_field_is_found(
    world: HttpWorld, body: dict[str, Any], param: str, meant: str
) -> None:
    error = (await world.http.post("/v1/chat/completions", json={"model": MODEL, **body})).json()["error"]
    assert error["param"] == param
    assert error["message"] == (
        f"The required field {param} is missing. There is a field '{meant}': is it meant?"
    )


async def test_a_missing_field_is_named(world: HttpWorld) -> None:
    error = await error_of(world, "/v1/chat/completions", {"model": MODEL})
    assert (error["param"], error["code"]) == ("messages", "missing_field")


async def test_a_part_that_is_not_text_is_named(world: HttpWorld) -> None:
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
    ]
    error = await refused(world, messages=[{"role": "user", "content": parts}])
    assert error["param"] == "messages[0].content[1]"
    assert "image_url" in error["message"]


@pytest.mark.parametrize("body", [b"", b"{", b'{"model": }', b"[1]", b'"text"', b'{"prompt": "\xff"}'])
async def test_a_body_that_is_not_a_json_object_is_refused(world: HttpWorld, body: bytes) -> None:
    response = await world.http.post("/v1/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


async def test_a_model_that_is_not_served_is_not_found(world: HttpWorld) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await world.client.chat.completions.create(model="other", messages=HELLO)
    assert caught.value.code == "model_not_found"


async def test_a_refusal_of_the_scheduler_keeps_its_status_and_field(world: HttpWorld) -> None:
    def refuse(request: Generate) -> Refused | None:
        return Refused(request.request, 429, "The server is full.", None, "queue_full")

    world.running.refuse = refuse
    body = {"model": MODEL, "messages": HELLO, "stream": True}
    response = await world.http.post("/v1/chat/completions", json=body)
    world.running.refuse = lambda request: None
    assert response.status_code == 429
    assert response.headers["retry-after"]
    assert response.json()["error"]["code"] == "queue_full"


async def test_one_refused_choice_refuses_the_request_and_aborts_the_others(world: HttpWorld) -> None:
    def refuse(request: Generate) -> Refused | None:
        if request.request.endswith("-1"):
            return Refused(request.request, 400, "No such schema.", "response_format")
        return None

    world.running.refuse = refuse
    world.running.gate.clear()
    error = await refused(world, n=3)
    world.running.refuse = lambda request: None
    world.running.gate.set()
    assert error["param"] == "response_format"
    await world.until(lambda: not world.running.rows)
    assert world.engine.open_requests == 0


async def test_fields_without_effect_and_unknown_fields_are_accepted(
    world: HttpWorld, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {"user": "a", "metadata": {"a": "b"}, "service_tier": "auto", "store": False, "whim": 1}
    for _ in range(2):
        schema = {"name": "a", "schema": {}, "strickt": True}
        format = {"type": "json_schema", "json_schema": schema, "whim": 1}
        more = {**fields, "temprature": 0.5, "response_format": format}
        await world.client.chat.completions.create(model=MODEL, messages=HELLO, extra_body=more)
    assert sorted(
        record.getMessage() for record in caplog.records if record.name.endswith(".field_names")
    ) == [
        "unknown request field 'response_format.json_schema.strickt': did you mean "
        "response_format.json_schema.strict?",
        "unknown request field 'response_format.whim'",
        "unknown request field 'temprature': did you mean temperature?",
        "unknown request field 'whim'",
    ]


async def test_hints_are_accepted_and_the_log_says_once_that_they_have_no_effect(
    world: HttpWorld, caplog: pytest.LogCaptureFixture
) -> None:
    for hints in (
        {"store": False, "service_tier": "auto"},
        {"store": True, "service_tier": "flex"},
        {"store": True, "service_tier": "priority"},
    ):
        await world.client.chat.completions.create(model=MODEL, messages=HELLO, extra_body=hints)
    assert sorted(
        record.getMessage() for record in caplog.records if record.name.endswith(".field_names")
    ) == [
        "the request field 'service_tier' has no effect. All requests are served alike, except for priority.",
        "the request field 'store' has no effect. Replies are not kept.",
    ]


@pytest.mark.parametrize("model", ["", None])
async def test_an_empty_model_is_the_one_that_is_served(world: HttpWorld, model: str | None) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
        body = {"model": model, "prompt": "Hello", **({"messages": HELLO} if "chat" in path else {})}
        assert (await world.http.post(path, json=body)).status_code == 200


async def test_only_the_beginning_of_a_long_unknown_name_is_read(
    world: HttpWorld, caplog: pytest.LogCaptureFixture
) -> None:
    for end in "ab":
        extra = {"whim" * 100_000 + end: 1}
        await world.client.chat.completions.create(model=MODEL, messages=HELLO, extra_body=extra)
    (message,) = [record.getMessage() for record in caplog.records if record.name.endswith(".field_names")]
    assert len(message) < 200


@pytest.mark.parametrize("field", ["json_schema", "guided_json"])
async def test_a_schema_in_a_string_nested_without_end_is_refused(world: HttpWorld, field: str) -> None:
    error = await refused(world, **{field: '{"items":' * 3_000 + "{}" + "}" * 3_000})
    assert error["param"] == field
    assert error["message"] == f"{field} is nested more than 200 levels deep."
