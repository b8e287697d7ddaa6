"""Constrained output and tool calls, asked of a server with all its processes."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import openai
import pytest
from served import HELLO, Served, eventually, text_of

SCHEMAS: dict[str, Any] = {
    "nested": {
        "type": "object",
        "properties": {
            "pet": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
                "required": ["name", "age"],
                "additionalProperties": False,
            },
            "wild": {"type": "boolean"},
        },
        "required": ["pet", "wild"],
        "additionalProperties": False,
    },
    "enums": {"type": "object", "properties": {"a": {"enum": ["x", 1, None]}}, "required": ["a"]}
    | {"additionalProperties": False},
    "array": {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": 99},
        "minItems": 2,
        "maxItems": 4,
    },
    "ref": {
        "$defs": {
            "point": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}
            | {"additionalProperties": False}
        },
        "type": "object",
        "properties": {"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}},
        "required": ["from", "to"],
        "additionalProperties": False,
    },
    "any_of": {"anyOf": [{"const": "yes"}, {"type": "null"}]},
    "format": {"type": "string", "format": "date"},
    "pattern": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2}$"},
}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Tells {name}.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"enum": ["Paris", "Berlin"]},
                    "days": {"type": "integer", "maximum": 9},
                },
                "required": ["city", "days"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("weather", "traffic")
]


def chat(served: Served, messages: Any = HELLO, **fields: Any) -> Any:
    fields = {"max_tokens": 200, **fields}
    return served.client.chat.completions.create(model=served.model, messages=messages, **fields)


def format_of(schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_reply_follows_its_schema_in_compact_json(served: Served, name: str) -> None:
    completion = chat(served, response_format=format_of(SCHEMAS[name]), extra_body={"whitespace": "compact"})
    value = json.loads(text_of(completion))
    jsonschema.validate(value, SCHEMAS[name], format_checker=jsonschema.FormatChecker())
    assert completion.choices[0].finish_reason == "stop"
    assert not re.search(r"[:,{\[]\s|\s[}\]]", re.sub(r'"(\\.|[^"\\])*"', '""', text_of(completion)))


def test_json_mode_gives_an_object(served: Served) -> None:
    bias = {str(token): 20 for token in served.token_ids('{}":')}
    completion = chat(served, response_format={"type": "json_object"}, logit_bias=bias, max_tokens=400)
    assert isinstance(json.loads(text_of(completion)), dict)


def test_properties_may_come_in_any_order_if_that_is_asked_for(served: Served) -> None:
    first = dict.fromkeys(map(str, served.token_ids("b")), 20)
    schema = {
        "type": "object",
        "properties": {"a": {"const": 1}, "b": {"const": 2}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    asked = {"response_format": format_of(schema), "logit_bias": first, "temperature": 0}
    assert text_of(chat(served, **asked, extra_body={"whitespace": "compact"})) == '{"a":1,"b":2}'
    free = chat(served, **asked, extra_body={"whitespace": "compact", "property_order": "any"})
    assert text_of(free) == '{"b":2,"a":1}'


UNKNOWN_FORMAT = {
    "type": "object",
    "properties": {"iban": {"type": "string", "format": "iban", "maxLength": 3}},
    "required": ["iban"],
    "additionalProperties": False,
}
LEFT_OUT = [{"keyword": "format", "path": "#/properties/iban/format"}]


def test_an_unknown_format_is_reported_or_refused_on_demand(served: Served) -> None:
    asked = {"response_format": format_of(UNKNOWN_FORMAT)}
    with pytest.raises(openai.BadRequestError, match="'format' at #/properties/iban/format"):
        chat(served, **asked, extra_body={"unenforced": "refuse"})
    for extra in ({}, {"unenforced": "allow"}):
        completion = chat(served, **asked, extra_body=extra)
        assert len(json.loads(text_of(completion))["iban"]) <= 3
        assert completion.model_extra["unenforced"] == LEFT_OUT
    assert "unenforced" not in chat(served).model_extra


@pytest.mark.parametrize("strict", [False, True])
def test_a_forced_call_has_pydantics_sets_and_paths(served: Served, strict: bool) -> None:
    properties = {
        "tags": {
            "type": "array",
            "items": {"type": "string", "maxLength": 3},
            "uniqueItems": True,
            "maxItems": 2,
        },
        "path": {"type": "string", "format": "path", "maxLength": 4},
    }
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    function = {"name": "tag", "parameters": parameters, "strict": strict}
    tools: Any = [{"type": "function", "function": function}]
    asked = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    completion = chat(served, **asked, seed=1)
    [call] = completion.choices[0].message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert len(set(arguments["tags"])) == len(arguments["tags"]) and len(arguments["path"]) <= 4
    told = [{"keyword": "format", "path": "tag#/properties/path/format"}]
    assert completion.model_extra["unenforced"] == told
    with pytest.raises(openai.BadRequestError, match="can't be enforced"):
        chat(served, **asked, extra_body={"unenforced": "refuse"})


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "pay"}}], ids=str)
def test_a_call_need_not_match_keywords_that_were_left_unenforced(served: Served, choice: Any) -> None:
    parameters = {
        "type": "object",
        "properties": {"pair": {"type": "string", "pattern": r"^(a|b)\1$", "maxLength": 2}},
        "required": ["pair"],
        "additionalProperties": False,
    }
    tools: Any = [{"type": "function", "function": {"name": "pay", "parameters": parameters}}]
    asked = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False, "temperature": 0}
    completion = chat(served, **asked, extra_body={"unenforced": "allow"})
    [call] = completion.choices[0].message.tool_calls
    assert len(json.loads(call.function.arguments)["pair"]) <= 2
    assert completion.model_extra["unenforced"][0]["path"] == "pay#/properties/pair/pattern"


@pytest.mark.parametrize("options", [None, {"include_usage": True}])
def test_a_stream_lists_unenforced_keywords_at_its_end(served: Served, options: Any) -> None:
    asked = {"response_format": format_of(UNKNOWN_FORMAT), "extra_body": {"unenforced": "allow"}}
    *chunks, last = chat(served, **asked, stream=True, stream_options=options)
    assert last.model_extra["unenforced"] == LEFT_OUT
    assert (last.usage is not None) == (options is not None)
    assert not any(chunk.model_extra.get("unenforced") for chunk in chunks)


@pytest.mark.parametrize("extra", [{"regex": "[ab]{3}-[0-9]"}, {"choice": ["aaa-1", "bbb-2"]}], ids=str)
def test_a_reply_follows_its_pattern_or_choice(served: Served, extra: Any) -> None:
    completion = chat(served, extra_body=extra, temperature=1)
    assert re.fullmatch("[ab]{3}-[0-9]", text_of(completion))
    assert completion.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    "grammar",
    [
        'start: pair ("," pair)*\npair: /[ab]/ "=" /[0-9]/',
        'root ::= pair ("," pair)*\npair ::= [ab] "=" [0-9]',
    ],
    ids=["Lark", "GBNF"],
)
def test_a_reply_follows_its_context_free_grammar(served: Served, grammar: str) -> None:
    text = text_of(chat(served, extra_body={"grammar": grammar}, temperature=1, max_tokens=9))
    assert re.match("[ab]=[0-9](,|$)", text)


def test_choices_of_a_request_are_constrained_alike_but_differ(served: Served) -> None:
    completion = chat(served, extra_body={"regex": "[a-z]{12}"}, n=4, temperature=1)
    texts = {choice.message.content for choice in completion.choices}
    assert len(texts) == 4
    assert all(re.fullmatch("[a-z]{12}", text) for text in texts)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "object", "properties": {"a": {"pattern": r"(a)\1"}}}, "pattern"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "strin"}, "strin"),
        ({"$ref": "#/nowhere"}, "nowhere"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_unenforceable_keyword_is_refused_by_name_before_a_stream_begins(
    served: Served, schema: Any, named: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError, match=re.escape(named)) as caught:
        chat(served, response_format=format_of(schema), stream=stream)
    assert caught.value.param == "response_format.json_schema.schema"
    assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize("extra", [{"regex": "ab"}, {"guided_json": {"enum": ["ab"]}}], ids=str)
def test_a_complete_constraint_overrides_min_tokens(served: Served, extra: Any) -> None:
    completion = chat(served, extra_body={**extra, "min_tokens": 20})
    assert completion.choices[0].message.content in ("ab", '"ab"')
    assert completion.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"regex": "("}, None),
        ({"regex": "(?=a)b"}, None),
        ({"guided_regex": r"(a)\1"}, None),
        ({"guided_grammar": "pair = a | b"}, "neither Lark nor GBNF"),
    ],
    ids=str,
)
def test_an_invalid_constraint_is_refused(served: Served, extra: Any, says: str | None) -> None:
    with pytest.raises(openai.BadRequestError, match=says) as caught:
        chat(served, extra_body=extra)
    assert caught.value.param == next(iter(extra))


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "traffic"}}], ids=str
)
def test_a_call_that_must_be_made_is_made(served: Served, choice: Any) -> None:
    completion = chat(served, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    (call,) = completion.choices[0].message.tool_calls
    assert call.type == "function"
    assert call.id
    assert call.function.name in (("weather", "traffic") if choice == "required" else ("traffic",))
    parameters = TOOLS[0]["function"]["parameters"]
    jsonschema.validate(json.loads(call.function.arguments), parameters)
    assert completion.choices[0].message.content is None
    assert completion.choices[0].finish_reason == ("tool_calls" if choice == "required" else "stop")


def test_a_conversation_may_have_calls_and_their_results(served: Served) -> None:
    first = chat(served, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    message = first.choices[0].message
    eventually(lambda: served.is_quiet)  # forced tokens at the end of a reply are computed after it
    told: Any = [
        *HELLO,
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "rain"},
    ]
    second = chat(served, told, tools=TOOLS, max_tokens=4)
    assert second.usage.prompt_tokens > first.usage.prompt_tokens + first.usage.completion_tokens
    reused = second.usage.prompt_tokens_details.cached_tokens
    assert reused >= first.usage.prompt_tokens + first.usage.completion_tokens - 2
