"""Constrained output and tool calls, asked of a server with all its processes."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel
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


def test_a_stream_follows_its_schema(served: Served) -> None:
    chunks = list(chat(served, response_format=format_of(SCHEMAS["nested"]), stream=True))
    value = json.loads("".join(chunk.choices[0].delta.content or "" for chunk in chunks))
    jsonschema.validate(value, SCHEMAS["nested"])


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


@pytest.mark.parametrize(
    ("whitespace", "written"),
    [
        ("compact", '{"a":1,"b":[2]}'),
        ("spaced", '{"a": 1, "b": [2]}'),
        ("indented", '{\n  "a": 1,\n  "b": [\n    2\n  ]\n}'),
    ],
)
def test_a_request_says_which_white_space_json_has(served: Served, whitespace: str, written: str) -> None:
    properties = {"a": {"const": 1}, "b": {"const": [2]}}
    schema = {
        "type": "object",
        "properties": properties,
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    asked = {"response_format": format_of(schema), "temperature": 0}
    assert text_of(chat(served, **asked, extra_body={"whitespace": whitespace})) == written


@pytest.mark.parametrize("first", [" ", "\n", "1"])
def test_the_first_white_space_binds_the_rest_of_the_reply(served: Served, first: str) -> None:
    """A bias chooses the white space after the first comma; the rest is forced."""
    schema = {"type": "array", "prefixItems": [{"const": 0}] * 4, "minItems": 4, "items": False}
    bias = dict.fromkeys(map(str, served.token_ids(first)), 90)
    completion = chat(served, response_format=format_of(schema), logit_bias=bias, temperature=0)
    gaps = re.findall(r"\s*", text_of(completion).replace("0", ""))
    assert json.loads(text_of(completion)) == [0, 0, 0, 0]
    commas = re.findall(r",(\s*)", text_of(completion))
    assert len(set(commas)) == 1 and gaps


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


@pytest.mark.parametrize(
    "extra",
    [
        {"regex": "[ab]{3}-[0-9]"},
        {"guided_regex": "[ab]{3}-[0-9]"},
        {"structured_outputs": {"regex": "[ab]{3}-[0-9]"}},
        {"choice": ["aaa-1", "bbb-2"]},
        {"guided_choice": ["aaa-1", "bbb-2"]},
        {"structured_outputs": {"choice": ["aaa-1", "bbb-2"]}},
    ],
    ids=lambda extra: "-".join(extra),
)
def test_every_name_of_a_constraint_works(served: Served, extra: Any) -> None:
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
def test_a_context_free_grammar_works_under_all_its_names(served: Served, grammar: str) -> None:
    names = ("guided_grammar", "grammar", "ebnf")
    for extra in (*({name: grammar} for name in names), {"structured_outputs": {"grammar": grammar}}):
        text = text_of(chat(served, extra_body=extra, temperature=1, max_tokens=9))
        assert re.match("[ab]=[0-9](,|$)", text)


def test_an_invalid_grammar_is_refused(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="neither Lark nor GBNF") as refusal:
        chat(served, extra_body={"guided_grammar": "pair = a | b"})
    assert refusal.value.param == "guided_grammar"


@pytest.mark.parametrize("name", ["guided_json", "structured_outputs"])
def test_vllms_names_of_a_schema_work(served: Served, name: str) -> None:
    schema = SCHEMAS["enums"]
    extra = {name: {"json": schema} if name == "structured_outputs" else schema}
    jsonschema.validate(json.loads(text_of(chat(served, extra_body=extra))), schema)


def test_a_completion_can_be_constrained_too(served: Served) -> None:
    completion = served.client.completions.create(
        model=served.model, prompt="Pick: ", max_tokens=20, extra_body={"choice": ["red", "green"]}
    )
    assert completion.choices[0].text in ("red", "green")


def test_choices_of_a_request_are_constrained_alike_but_differ(served: Served) -> None:
    completion = chat(served, extra_body={"regex": "[a-z]{12}"}, n=4, temperature=1)
    texts = {choice.message.content for choice in completion.choices}
    assert len(texts) == 4
    assert all(re.fullmatch("[a-z]{12}", text) for text in texts)


def test_constrained_replies_keep_their_seed(served: Served) -> None:
    texts = [text_of(chat(served, extra_body={"regex": "[a-z]{12}"}, seed=8)) for _ in range(2)]
    assert texts[0] == texts[1]


class Size(StrEnum):
    small = "small"
    large = "large"


class Friend(BaseModel):
    wild: bool


class Animal(BaseModel):
    kind: Literal["cat", "dog"]
    size: Size
    friends: list[Friend]


def test_openais_parse_fills_a_pydantic_model(served: Served) -> None:
    for seed in range(20):  # the model has no habit of closing its lists
        try:
            completion = served.client.chat.completions.parse(
                model=served.model, messages=HELLO, response_format=Animal, max_tokens=300, seed=seed
            )
        except openai.LengthFinishReasonError:
            continue
        assert isinstance(completion.choices[0].message.parsed, Animal)
        return
    pytest.fail("no reply came to its end")


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
    ("extra", "param"),
    [
        ({"regex": "("}, "regex"),
        ({"regex": "(?=a)b"}, "regex"),
        ({"guided_regex": r"(a)\1"}, "guided_regex"),
        ({"choice": []}, "choice"),
        ({"regex": "a", "choice": ["a"]}, "choice"),
    ],
)
def test_an_invalid_constraint_is_refused(served: Served, extra: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(served, extra_body=extra)
    assert caught.value.param == param


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


def test_the_deltas_of_a_streamed_call_make_valid_json(served: Served) -> None:
    one_call: Any = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    chunks = list(chat(served, stream=True, **one_call))
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert deltas[0].id
    assert deltas[0].function.name in ("weather", "traffic")
    assert {delta.index for delta in deltas} == {0}
    assert all(delta.id is None and delta.function.name is None for delta in deltas[1:])
    arguments = json.loads("".join(delta.function.arguments or "" for delta in deltas))
    jsonschema.validate(arguments, TOOLS[0]["function"]["parameters"])
    assert not "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_a_call_is_optional(served: Served, choice: Any) -> None:
    completion = chat(served, tools=TOOLS, tool_choice=choice, max_tokens=5)
    assert completion.choices[0].message.tool_calls is None
    assert completion.choices[0].message.content is not None


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


def test_a_message_may_have_two_calls(served: Served) -> None:
    calls = [
        {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in ("weather", "traffic")
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "none"} for call in calls]
    told: Any = [*HELLO, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    assert chat(served, told, tools=TOOLS, max_tokens=4).choices


def test_a_choice_of_a_missing_tool_is_refused(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="nothing") as caught:
        chat(served, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "nothing"}})
    assert caught.value.param == "tool_choice"
