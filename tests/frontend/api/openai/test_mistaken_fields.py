"""Fields that a client got wrong: the error says what was sent and what was meant."""

from __future__ import annotations

import httpx
import pytest
from arbora.frontend.core.type_errors import STEP_BYTES, json_mistake
from http_world import HELLO, HttpWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("regx", "regex"),
        ("regexp", "regex"),
        ("json_shema", "json_schema"),
        ("guided_jsn", "guided_json"),
        ("guided_choices", "guided_choice"),
        ("responseFormat", "response_format"),
        ("structured_output", "structured_outputs"),
        ("gramar", "grammar"),
        ("complete_jsn", "complete_json"),
        ("property_ordr", "property_order"),
        ("unenforce", "unenforced"),
        ("guided_schema", "json_schema"),
        ("schema", "json_schema"),
        ("json", "json_schema"),
        ("output_format", "response_format"),
        ("pattern", "regex"),
        ("regular_expression", "regex"),
        ("enum", "choice"),
        ("lark", "grammar"),
        ("gbnf", "grammar"),
    ],
)
async def test_a_misspelt_constraint_is_refused(world: HttpWorld, name: str, meant: str) -> None:
    for path, body in ((CHAT, {"messages": HELLO}), (COMPLETIONS, {"prompt": "Hello"})):
        error = await error_of(world, path, {**body, name: "a"})
        assert error["message"] == f"{name} is no known field. Did you mean {meant}?"
        assert (error["param"], error["code"]) == (name, "unknown_parameter")
        assert (await world.http.post(path, json={**body, name: None})).status_code == 200


@pytest.mark.parametrize("name", ["whim", "format", "options", "keep_alive", "provider", "route", "plugins"])
async def test_a_field_that_is_like_no_constraint_is_ignored(world: HttpWorld, name: str) -> None:
    assert (await world.http.post(CHAT, json={"messages": HELLO, name: "a"})).status_code == 200


async def test_a_field_of_the_other_endpoint_names_it(world: HttpWorld) -> None:
    error = await error_of(world, CHAT, {"prompt": "Hello"})
    assert "messages is missing, and prompt is a field of /v1/completions: send" in error["message"]
    error = await error_of(world, COMPLETIONS, {"messages": HELLO})
    assert "prompt is missing, and messages is a field of /v1/chat/completions: send" in error["message"]
    assert error["param"] == "prompt"


@pytest.mark.parametrize(
    ("path", "body", "name", "meant"),
    [
        ("/tokenize", {"text": "Hello"}, "text", "prompt"),
        ("/tokenize", {"message": HELLO}, "message", "messages"),
        ("/cache/pin", {"content": "Hello", "ttl_s": 3}, "content", "prompt"),
        ("/detokenize", {"ids": [5]}, "ids", "tokens"),
    ],
)
async def test_another_servers_name_of_a_prompt_is_refused_with_the_name_here(
    world: HttpWorld, path: str, body: object, name: str, meant: str
) -> None:
    error = await error_of(world, path, body)
    assert error["message"] == f"{name} is no known field. Did you mean {meant}?"
    assert error["param"] == name


async def test_a_prompt_is_a_text_or_messages_but_not_both(world: HttpWorld) -> None:
    error = await error_of(world, "/tokenize", {})
    assert error["message"] == "Neither prompt nor messages is given: give one of them."
    error = await error_of(world, "/tokenize", {"prompt": "Hello", "messages": HELLO})
    assert error["message"] == "Both prompt and messages are given: give one of them."


async def test_a_required_field_may_be_meant_by_its_name_without_the_unit(world: HttpWorld) -> None:
    error = await error_of(world, CHAT, {"messages": HELLO, "cache_lease": {"ttl": 3}})
    expected = "The required field cache_lease.ttl_s is missing. There is a field 'ttl': is it meant?"
    assert error["message"] == expected


async def test_a_tool_without_a_type_is_a_function(world: HttpWorld) -> None:
    function = {"function": {"name": "look"}}
    typed, untyped = [
        await world.http.post("/tokenize", json={"messages": HELLO, "tools": [tool]})
        for tool in ({"type": "function", **function}, function)
    ]
    assert typed.status_code == 200 and typed.json() == untyped.json()


@pytest.mark.parametrize(
    ("body", "shown"),
    [([], "[]"), ("hi", '"hi"'), (5, "5"), (True, "true"), (["a" * 200], "a list")],
)
async def test_a_body_that_is_not_an_object_is_shown(world: HttpWorld, body: object, shown: str) -> None:
    error = await error_of(world, CHAT, body)
    assert error["message"] == f"The request's body is {shown}, but must be a JSON object."


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", 3, "temperature is 3, but must be between 0 and 2."),
        ("temperature", 2.5, "temperature is 2.5, but must be between 0 and 2."),
        ("n", 0, "n is 0, but must be between 1 and 128."),
        ("logit_bias", {"x": 1}, "logit_bias has the key 'x', but keys must be token ids from 0 to "),
        ("functions", [{}], "functions is [{}], which is not supported. Give each as one of tools: "),
        ("structural_tag", {}, "structural_tag is {}, which is not supported. Give it as response_format."),
        ("modalities", ["audio"], 'modalities is ["audio"], but only ["text"] is supported. Leave it out'),
    ],
)
async def test_a_wrong_value_is_shown_as_it_was_sent(
    world: HttpWorld, field: str, value: object, message: str
) -> None:
    error = await error_of(world, CHAT, {"messages": HELLO, field: value})
    assert error["message"].startswith(message)


async def test_a_prompt_that_is_too_long_names_the_limit_once_and_what_to_do(world: HttpWorld) -> None:
    for path, body, fix in (
        (CHAT, {"messages": [{"role": "user", "content": "cat " * 9000}]}, "or drop earlier turns."),
        (COMPLETIONS, {"prompt": "cat " * 9000}, "shorten it."),
        (COMPLETIONS, {"prompt": [5] * 256}, "shorten it."),
    ):
        message = (await error_of(world, path, body))["message"]
        assert message.count("256") == 1 + (body.get("prompt") == [5] * 256)
        assert message.endswith(fix) and "maximum context length is 256" in message


async def test_one_token_is_singular(world: HttpWorld) -> None:
    error = await error_of(world, COMPLETIONS, {"prompt": "Hello", "max_tokens": 1, "min_tokens": 2})
    assert "the reply can have at most 1 token:" in error["message"]


@pytest.mark.parametrize(
    ("name", "value", "nothing", "instead"),
    [
        ("guided_json_object", True, False, 'Use response_format: {"type": "json_object"}.'),
        ("json_mode", True, False, 'Use response_format: {"type": "json_object"}.'),
        ("guided_decoding", {"regex": "a"}, None, "Use structured_outputs."),
        ("response_schema", {"type": "object"}, None, "Use json_schema."),
        ("extra_body", {"regex": "a"}, None, "Put its fields beside the others."),
    ],
)
async def test_a_constraint_of_another_server_is_refused(
    world: HttpWorld, name: str, value: object, nothing: object, instead: str
) -> None:
    error = await error_of(world, CHAT, {"messages": HELLO, name: value})
    assert error["message"].endswith(instead)
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert (await world.http.post(CHAT, json={"messages": HELLO, name: nothing})).status_code == 200


async def test_a_misspelt_tool_choice_is_refused_in_chats(world: HttpWorld) -> None:
    error = await error_of(world, CHAT, {"messages": HELLO, "tool_chioce": "none"})
    assert error["message"] == "tool_chioce is no known field. Did you mean tool_choice?"


@pytest.mark.parametrize("value", [False, "", [], {}, None])
async def test_a_misspelt_constraint_that_asks_for_nothing_is_ignored(
    world: HttpWorld, value: object
) -> None:
    assert (await world.http.post(CHAT, json={"messages": HELLO, "regexp": value})).status_code == 200


@pytest.mark.parametrize(
    "name", ["structured_outputs_backend", "structured_outputs_config", "structured_output_method"]
)
async def test_the_choice_of_a_grammar_backend_has_no_effect(world: HttpWorld, name: str) -> None:
    assert (await world.http.post(CHAT, json={"messages": HELLO, name: "auto"})).status_code == 200


async def sent(world: HttpWorld, body: bytes) -> httpx.Response:
    return await world.http.post(CHAT, content=body, headers={"content-type": "application/json"})


async def test_a_byte_order_mark_before_the_body_is_skipped(world: HttpWorld) -> None:
    body = b'\xef\xbb\xbf{"messages": [{"role": "user", "content": "Hello"}]}'
    assert (await sent(world, body)).status_code == 200
    assert "is empty" in (await sent(world, b"\xef\xbb\xbf")).text


@pytest.mark.parametrize(
    ("text", "half", "place"),
    [
        (rb"\ud83d", rb"\ud83d", 12),
        (rb"\ud83d and more", rb"\ud83d", 12),
        (rb"a\uDE00", rb"\uDE00", 13),
        (rb"\ud83d\ud83d\ude00", rb"\ud83d", 12),
        (rb"\ud83d\ude00\\\n\ud83d\n", rb"\ud83d", 28),
        (b"a" * STEP_BYTES + rb"\n\ud83d", rb"\ud83d", 12 + STEP_BYTES + 2),
    ],
    ids=range(6),
)
async def test_half_of_a_surrogate_pair_is_named_with_its_place(
    world: HttpWorld, text: bytes, half: bytes, place: int
) -> None:
    body = b'{"prompt": "' + text + b'", "messages": []}'
    assert body[place : place + 6] == half
    message = (await sent(world, body)).json()["error"]["message"]
    assert f"{half.decode()} at byte {place} is half of a surrogate pair" in message


async def test_half_of_a_surrogate_pair_in_a_schema_in_a_string_is_named(world: HttpWorld) -> None:
    error = await error_of(world, CHAT, {"messages": HELLO, "json_schema": r'{"enum": ["\ud83d"]}'})
    assert r"json_schema is not valid JSON: \ud83d at byte 11 is half of a surrogate pair" in error["message"]


async def test_a_body_that_ends_too_early_is_refused_with_the_place_of_its_end(world: HttpWorld) -> None:
    message = (await sent(world, b'{"messages": [')).json()["error"]["message"]
    assert "truncated (byte 14, where it ends)" in message


async def test_an_escaped_backslash_begins_no_surrogate(world: HttpWorld) -> None:
    body = rb'{"messages": [{"role": "user", "content": "\\ud83d \ud83d\ude00"}], }'
    message = (await sent(world, body)).json()["error"]["message"]
    assert "surrogate" not in message and "is not valid JSON" in message


@pytest.mark.parametrize("place", range(STEP_BYTES - 8, STEP_BYTES + 1))
async def test_a_pair_that_two_steps_share_is_no_half(place: int) -> None:
    text = b"a" * place + rb"\ud83d\ude00"
    assert json_mistake(text, ValueError("wrong")) == "wrong"


async def test_half_of_a_surrogate_pair_in_bytes_is_named_with_its_place(world: HttpWorld) -> None:
    body = b'{"prompt": "' + "\ud83d".encode("utf-8", "surrogatepass") + b'"}'
    message = (await sent(world, body)).json()["error"]["message"]
    assert "not valid UTF-8: it has the byte 0xed at byte 12, half of a surrogate pair." in message


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_responses_name_their_own_field_for_the_length(
    world: HttpWorld, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = await error_of(world, "/v1/responses", {"input": "Hello", name: 5})
    assert error["message"] == f"{name} is no known field. Did you mean max_output_tokens?"
    body = {"input": "Hello", name: 5, "max_output_tokens": 2}
    assert (await world.http.post("/v1/responses", json=body)).status_code == 200
    assert f"request field '{name}': did you mean max_output_tokens?" in caplog.text


@pytest.mark.parametrize("offset", [-3, -2, -1, 0])
async def test_text_is_checked_across_the_slices_of_a_body(world: HttpWorld, offset: int) -> None:
    start = b'{"messages":[{"role":"user","content":"Hello"}],"user":"'
    padding = b"a" * (STEP_BYTES + offset - len(start))
    for text, is_text in (("🌳".encode(), True), ("🌳".encode()[:3], False), (b"\xff", False)):
        body = start + padding + text + b'"}'
        response = await world.http.post(CHAT, content=body, headers={"content-type": "application/json"})
        assert ("is not valid UTF-8: it has the byte 0x" in response.text) != is_text
