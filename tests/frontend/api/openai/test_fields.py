"""Combinations of fields, and errors that name the values that a field may have."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from http_world import HELLO, MODEL, HttpWorld, http_world, last_generate, refused

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
TAG: Any = {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(context_length=1024) as world:
        yield world


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("additional_properties", "none", "'declared' or 'schema'"),
        ("property_order", "random", "'schema' or 'any'"),
        ("unenforced", "ignore", "'refuse' or 'allow'"),
        ("whitespace", "none", "'model', 'compact', 'spaced' or 'indented'"),
        ("verbosity", "loud", "'low', 'medium' or 'high'"),
        ("reasoning_effort", "banana", "'none', 'minimal', 'low', 'medium', 'high', 'xhigh' or 'max'"),
    ],
)
async def test_an_unknown_word_is_named_with_the_allowed_ones(
    world: HttpWorld, name: str, value: str, allowed: str
) -> None:
    error = await refused(world, **{name: value})
    assert error["param"] == name
    assert error["message"] == f"{name} is {value!r}, but must be {allowed}."


@pytest.mark.parametrize(
    "fields",
    [{"additional_properties": "schema"}, {"property_order": "any"}, {"unenforced": "allow"}],
    ids=str,
)
@pytest.mark.parametrize("constraint", [{}, {"regex": "a"}, {"guided_grammar": "start: /a/"}], ids=str)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_field_about_enforcement_needs_a_schema(
    world: HttpWorld, fields: Any, constraint: Any, path: str
) -> None:
    error = await refused(world, path, **fields, **constraint)
    assert error["param"] == next(iter(fields))
    assert "that has a JSON schema" in error["message"]


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({}, "model"),
        ({"whitespace": "spaced"}, "spaced"),
        ({"guided_whitespace_pattern": ""}, "compact"),
        ({"guided_whitespace_pattern": "[ ]?"}, "spaced"),
        ({"guided_whitespace_pattern": r"[\n\t ]*"}, "model"),
        ({"guided_whitespace_pattern": "[ ]?", "whitespace": "indented"}, "indented"),
        ({"response_format": {"type": "json_object"}, "guided_whitespace_pattern": ""}, "compact"),
        ({"structured_outputs": {"json": {"type": "object"}, "disable_any_whitespace": True}}, "compact"),
        ({"structured_outputs": {"json": {"type": "object"}, "whitespace_pattern": r"\s*"}}, "model"),
    ],
    ids=str,
)
async def test_white_space_is_what_the_request_asks_for_in_our_fields_or_vllms(
    world: HttpWorld, fields: Any, sent: str
) -> None:
    world.script = world.says("{}")
    if "structured_outputs" not in fields and "response_format" not in fields:
        fields = {**fields, "guided_json": {"type": "object"}}
    reply = await world.http.post("/v1/chat/completions", json={"model": MODEL, "messages": HELLO, **fields})
    assert reply.status_code == 200, reply.text
    grammar = last_generate(world).grammar
    assert grammar is not None and grammar.whitespace == sent


async def test_what_structured_outputs_say_about_json_holds_beside_tools_too() -> None:
    wanted = {
        "json": {"type": "object"},
        "disable_any_whitespace": True,
        "disable_additional_properties": True,
    }
    tools = [{"type": "function", "function": {"name": "look"}}]
    async with http_world(additional_properties="schema", context_length=1024) as world:
        world.script = world.says("{}")
        body = {"messages": HELLO, "structured_outputs": wanted, "tools": tools}
        assert (await world.http.post("/v1/chat/completions", json=body)).status_code == 200
        grammar = last_generate(world).grammar
    assert grammar is not None and grammar.kind == "structural_tag"
    assert (grammar.whitespace, grammar.additional_properties) == ("compact", "declared")


@pytest.mark.parametrize("pattern", [" ", "[ ]+", "("])
async def test_a_pattern_of_white_space_that_no_rule_fits_is_refused(world: HttpWorld, pattern: str) -> None:
    error = await refused(world, guided_json={"type": "object"}, guided_whitespace_pattern=pattern)
    assert error["param"] == "guided_whitespace_pattern"


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?:(?:(?:(?:|\n){9}){9}){9}){9}x",
        "(?:" * 12 + r"|\n" + ")*" * 12 + "x",
        "(?:){4000000000}",
        r"( ?)\1{4000000000}",
        "(|)" * 50 + "x",
        r"\s?" * 50 + "x",
        "(?>(?:|a){4000000000})",
        "( )?(?(1)(?:|a){4000000000}|x)",
    ],
)
async def test_a_pattern_of_white_space_that_would_take_long_is_refused(
    world: HttpWorld, pattern: str
) -> None:
    error = await refused(world, guided_json={"type": "object"}, guided_whitespace_pattern=pattern)
    assert error["param"] == "guided_whitespace_pattern" and "repeats groups too often" in error["message"]


async def test_white_space_needs_json(world: HttpWorld) -> None:
    error = await refused(world, regex="a", whitespace="compact")
    assert error["param"] == "whitespace" and "asks for JSON" in error["message"]


async def test_the_default_of_a_field_about_enforcement_needs_no_schema(world: HttpWorld) -> None:
    world.script = world.says("ok")
    fields = {"additional_properties": "declared", "property_order": "schema", "unenforced": "refuse"}
    body = {"model": MODEL, "messages": HELLO, "regex": "ok", **fields}
    assert (await world.http.post("/v1/chat/completions", json=body)).status_code == 200


@pytest.mark.parametrize("default", ["declared", "schema"])
@pytest.mark.parametrize("asked", [None, "declared", "schema"])
async def test_the_servers_additional_properties_apply_to_requests_without_the_field(
    default: str, asked: str | None
) -> None:
    async with http_world(additional_properties=default) as world:
        world.script = world.says("{}")
        fields = {"response_format": SCHEMA, **({"additional_properties": asked} if asked else {})}
        body = {"messages": HELLO, **fields}
        assert (await world.http.post("/v1/chat/completions", json=body)).status_code == 200
        grammar = last_generate(world).grammar
        assert grammar is not None and grammar.additional_properties == (asked or default)


async def test_disable_additional_properties_means_declared_ones() -> None:
    async with http_world(additional_properties="schema") as world:
        world.script = world.says("{}")
        for disabled, expected in ((True, "declared"), (False, "schema")):
            wanted = {"json": {"type": "object"}, "disable_additional_properties": disabled}
            body = {"messages": HELLO, "structured_outputs": wanted}
            assert (await world.http.post("/v1/chat/completions", json=body)).status_code == 200
            grammar = last_generate(world).grammar
            assert grammar is not None and grammar.additional_properties == expected


@pytest.mark.parametrize(
    ("default", "asked", "sent"),
    [
        ("annotations", None, "annotations"),
        ("annotations", "refuse", "refuse"),
        ("refuse", None, "refuse"),
        ("refuse", "allow", "allow"),
        ("allow", None, "allow"),
        ("allow", "refuse", "refuse"),
    ],
)
async def test_the_servers_unenforced_applies_to_requests_without_the_field(
    default: str, asked: str | None, sent: str
) -> None:
    async with http_world(unenforced=default) as world:
        world.script = world.says("{}")
        fields = {"response_format": SCHEMA, **({"unenforced": asked} if asked else {})}
        for path in ("/v1/chat/completions", "/v1/completions"):
            body = {"messages": HELLO, "prompt": "Hello", **fields}
            assert (await world.http.post(path, json=body)).status_code == 200
            grammar = last_generate(world).grammar
            assert grammar is not None and grammar.unenforced == sent


async def test_the_servers_default_of_unenforced_needs_no_schema() -> None:
    async with http_world(unenforced="allow") as world:
        world.script = world.says("ok")
        body = {"messages": HELLO, "regex": "ok"}
        assert (await world.http.post("/v1/chat/completions", json=body)).status_code == 200


MISSPELT: Any = {"type": "object", "properties": {"a": {"type": "string", "minLenght": 3}}}
MISSPELT_IN = {"keyword": "minLenght", "path": "#/properties/a/minLenght"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_misspelt_keyword_is_listed_in_the_reply(world: HttpWorld, stream: bool) -> None:
    world.script = world.says("{}")
    body = {"model": MODEL, "messages": HELLO, "json_schema": MISSPELT, "stream": stream}
    answer = await world.http.post("/v1/chat/completions", json=body)
    events = [line.removeprefix("data: ") for line in answer.text.split("\n") if line.startswith("data: {")]
    last = json.loads(events[-1]) if stream else answer.json()
    assert last["unenforced"] == [MISSPELT_IN]


async def test_a_misspelt_keyword_of_a_tool_is_listed_with_the_tools_name(world: HttpWorld) -> None:
    world.script = world.says("ok")
    tool = {"type": "function", "function": {"name": "look", "parameters": MISSPELT}}
    body = {"model": MODEL, "messages": HELLO, "tools": [tool]}
    answer = await world.http.post("/v1/chat/completions", json=body)
    assert answer.json()["unenforced"] == [{**MISSPELT_IN, "path": f"look{MISSPELT_IN['path']}"}]
    error = await refused(world, tools=[tool], unenforced="refuse")
    assert error["param"] == "tools[0].function.parameters"
    assert "'minLenght' at look#/properties/a/minLenght" in error["message"]


async def test_a_misspelt_keyword_is_refused_by_name_and_path_on_request(world: HttpWorld) -> None:
    error = await refused(world, json_schema=MISSPELT, unenforced="refuse")
    assert (error["param"], error["code"]) == ("json_schema", "invalid_grammar")
    assert "'minLenght' at #/properties/a/minLenght" in error["message"]
    assert "did you mean 'minLength'?" in error["message"]


@pytest.mark.parametrize("spelled", [{"type": "integer"}, '{"type": "integer"}'], ids=str)
@pytest.mark.parametrize(
    "fields",
    [
        lambda schema: {"json_schema": schema},
        lambda schema: {"structured_outputs": {"json": schema}},
        lambda schema: {"response_format": {"type": "json_object", "schema": schema}},
        lambda schema: {
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        },
    ],
    ids=["json_schema", "structured_outputs", "json_object", "response_format"],
)
async def test_a_schema_is_an_object_or_a_string_that_holds_it(
    world: HttpWorld, fields: Callable[[object], Any], spelled: object
) -> None:
    world.script = world.says("1")
    body = {"model": MODEL, "messages": HELLO, **fields(spelled)}
    assert (await world.http.post("/v1/chat/completions", json=body)).status_code == 200
    grammar = last_generate(world).grammar
    assert grammar is not None
    assert (grammar.kind, json.loads(grammar.text)) == ("json_schema", {"type": "integer"})


BIG = {"enum": [10**22, 123456789012345678901234567890]}
EQUAL: list[Any] = [
    {"guided_grammar": "start: /a/", "structured_outputs": {"grammar": "start: /a/"}},
    {"regex": "ok", "guided_regex": "ok", "structured_outputs": {"regex": "ok"}},
    {"choice": ["a", "b"], "guided_choice": ["b", "a", "a"]},
    {"guided_json": '{"a": 1, "b": [true]}', "json_schema": {"b": [True], "a": 1.0}},
    {"guided_json": '{"enum": [1e22, 123456789012345678901234567890]}'} | {"json_schema": BIG},
    {"guided_json": {"type": "object"}, "response_format": SCHEMA},
    {"guided_json": {"type": "object"}, "response_format": {"type": "json_object"}},
    {
        "response_format": {"type": "structural_tag", "format": TAG},
        "structured_outputs": {"structural_tag": {"format": TAG}},
    },
]
DIFFERENT: list[Any] = [
    {"guided_grammar": "start: /a/", "structured_outputs": {"grammar": "start: /b/"}},
    {"regex": "a", "guided_regex": "b"},
    {"regex": "a", "choice": ["a"]},
    {"choice": ["a"], "guided_choice": ["a", "b"]},
    {"guided_json": {"enum": [1]}, "json_schema": {"enum": [True]}},
    {"guided_json": {"enum": [1, 2]}, "json_schema": {"enum": [2, 1]}},
    {"guided_json": {}, "response_format": {"type": "json_object"}},
]


@pytest.mark.parametrize("fields", EQUAL, ids=str)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_one_constraint_may_go_by_several_names(world: HttpWorld, path: str, fields: Any) -> None:
    world.script = world.says("ok")
    response = await world.http.post(path, json={"messages": HELLO, "prompt": "Hello", **fields})
    assert response.status_code == 200, response.text
    assert last_generate(world).grammar is not None


@pytest.mark.parametrize("fields", DIFFERENT, ids=str)
async def test_constraints_that_differ_are_refused_by_their_names(world: HttpWorld, fields: Any) -> None:
    error = await refused(world, **fields)
    assert all(name in error["message"] for name in fields)
    assert "give only one, or the same value in each" in error["message"]


@pytest.mark.parametrize(
    "limit", [{}, {"max_tokens": 5}, {"max_completion_tokens": 5}, {"stream": True}], ids=str
)
async def test_the_error_names_messages_if_they_alone_are_too_long(world: HttpWorld, limit: Any) -> None:
    error = await refused(world, messages=[{"role": "user", "content": "Hello " * 2000}], **limit)
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")
    assert "maximum context length is 1024 tokens" in error["message"]
    assert "max_" not in error["message"]


async def test_the_error_names_the_prompt_if_it_alone_is_too_long(world: HttpWorld) -> None:
    for limit in ({}, {"max_tokens": 5}):
        error = await refused(world, "/v1/completions", prompt=[5] * 1025, **limit)
        assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
        assert "the prompt has 1025" in error["message"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/completions", "max_tokens"),
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/chat/completions", "max_completion_tokens"),
    ],
)
async def test_a_reply_ends_with_the_context_where_its_limit_goes_beyond(
    world: HttpWorld, path: str, name: str
) -> None:
    world.script = lambda request: [5] * 2000
    for limit in (900, 1024):
        body = {"messages": [{"role": "user", "content": "cat " * 150}], "prompt": [5] * 300, name: limit}
        answer = (await world.http.post(path, json=body)).json()
        assert answer["usage"]["total_tokens"] == 1024
        assert answer["choices"][0]["finish_reason"] == "length"
    error = await refused(world, path, **{name: 1025})
    assert (error["param"], error["code"]) == (name, "context_length_exceeded")
    assert f"{name} is 1025" in error["message"] and "1024 tokens" in error["message"]


async def test_each_prompt_of_a_list_has_its_own_limit_for_a_reply(world: HttpWorld) -> None:
    world.script = lambda request: [5] * 2000
    body = {"prompt": [[5] * 1020, [5] * 1000, [5]], "max_tokens": 30, "n": 2, "seed": 1}
    usage = (await world.http.post("/v1/completions", json=body)).json()["usage"]
    assert usage["completion_tokens"] == 2 * (4 + 24 + 30)


@pytest.mark.parametrize("limit", [{}, {"max_tokens": 950}], ids=str)
async def test_a_min_tokens_above_the_possible_length_is_refused(world: HttpWorld, limit: Any) -> None:
    messages = [{"role": "user", "content": "cat " * 150}]
    error = await refused(world, messages=messages, min_tokens=900, **limit)
    assert error["param"] == "min_tokens"
    assert "min_tokens is 900" in error["message"] and "what the prompt leaves" in error["message"]


async def test_the_default_length_of_a_completion_fits_a_short_context() -> None:
    async with http_world(context_length=8) as small:
        small.script = lambda request: [5] * 99
        answer = (await small.http.post("/v1/completions", json={"prompt": [5, 6, 7]})).json()
        assert answer["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"n": "2"}, "n", 'n is "2", but must be an integer.'),
        ({"logprobs": 5}, "logprobs", "logprobs is 5, but must be true or false."),
        ({"stop": ["a", 5]}, "stop[1]", "stop[1] is 5, but must be a string."),
        ({"stop": {}}, "stop", "stop is an object, but must be a string or a list."),
        ({"messages": None}, "messages", "messages is null, but must be a list."),
        ({"tools": "x" * 99}, "tools", f'tools is "{"x" * 59}…, but must be a list.'),
        ({"logit_bias": {"5": "a"}}, "logit_bias[...]", 'logit_bias[...] is "a", but must be a number.'),
        (
            {"logit_bias": {"5": "a", "6": "b"}},
            "logit_bias[...]",
            "logit_bias[...] is a string, but must be a number.",
        ),
    ],
)
async def test_a_value_of_a_wrong_type_is_named_with_the_right_types(
    world: HttpWorld, fields: Any, param: str, says: str
) -> None:
    error = await refused(world, **fields)
    assert (error["param"], error["message"]) == (param, says)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b" ", "is empty"),
        (b'{"prompt": "\xff"}', "not valid UTF-8: it has the byte 0xff"),
        (b'{"prompt": "a", "stream_options": {"\xff": 1}}', "not valid UTF-8: it has the byte 0xff"),
        (
            b'{"prompt": "a", "max_tokens": 5.0, "stop": "\xed\xa0\x80"}',
            "not valid UTF-8: it has the byte 0xed",
        ),
        (
            b'{"prompt": "a", "response_format": {"type": "json_schema", "json_schema": '
            b'{"schema": {"enum": ["\xff"]}}}}',
            "not valid UTF-8: it has the byte 0xff",
        ),
        (b'{"prompt": "a", "json_schema": "\xed\xa0\x80"}', "not valid UTF-8: it has the byte 0xed"),
    ],
)
async def test_a_body_that_is_not_utf8_is_refused_as_such(world: HttpWorld, body: bytes, says: str) -> None:
    response = await world.http.post("/v1/completions", content=body)
    assert response.status_code == 400
    assert says in response.json()["error"]["message"]


@pytest.mark.parametrize("missing", ["begin", "end", "content", "type"])
async def test_a_missing_field_of_a_structural_tag_is_named(world: HttpWorld, missing: str) -> None:
    tag = {name: value for name, value in TAG.items() if name != missing}
    for format in (tag, {**tag, missing: None}):
        error = await refused(world, response_format={"type": "structural_tag", "format": format})
        param = f"response_format.format.{missing}"
        assert error["param"] == param
        assert error["message"] == f"The required field {param} is missing."


async def test_a_mistake_in_a_structural_tag_is_shown_as_it_was_sent(world: HttpWorld) -> None:
    format = {**TAG, "end": {"a": None, "b": True}}
    error = await refused(world, response_format={"type": "structural_tag", "format": format})
    assert '{"a":null,"b":true}' in error["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_more_replies_to_choose_from_than_n_are_refused(world: HttpWorld, path: str) -> None:
    error = await refused(world, path, n=2, best_of=3)
    assert error["param"] == "best_of"
    assert "set it to n, which is 2" in error["message"]
