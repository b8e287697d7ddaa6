"""Tool calls, structural tags and reasoning, asked of a server whose model knows special tokens for them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pytest
import tokenizers
from pydantic import BaseModel
from safetensors.numpy import load_file, save_file
from served import HELLO, TEMPLATE, Served, serve
from tiny_checkpoint import write_tiny_checkpoint
from tokenizers import AddedToken

MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
THINKS = (
    "{% if enable_thinking %}<think>\n{% elif enable_thinking is defined %}<think>\n\n</think>\n\n{% endif %}"
)
CITY = {"enum": ["Paris", "Berlin"]}
PARAMETERS: Any = {
    "type": "object",
    "properties": {"city": CITY, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
    for name in ("weather", "traffic")
]
UNCOVERED: Any = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
ANSWER: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": CITY}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(write_checkpoint(tmp_path_factory.mktemp("tags") / "tiny")) as running:
        yield running


def write_checkpoint(directory: Path) -> Path:
    """The tiny model with special tokens for calls, and for reasoning, which its template can begin."""
    write_tiny_checkpoint(directory)
    backend = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    backend.add_special_tokens([AddedToken(mark, normalized=False) for mark in MARKS])
    backend.save(str(directory / "tokenizer.json"))
    weights = load_file(directory / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = weights[name][: backend.get_vocab_size()]
    save_file(weights, directory / "model.safetensors")
    edit(directory / "config.json", vocab_size=backend.get_vocab_size(), max_position_embeddings=2048)
    edit(directory / "tokenizer_config.json", chat_template=TEMPLATE.read_text() + THINKS)
    return directory


def edit(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def chat(server: Served, *likely: str, **fields: Any) -> Any:
    """`likely` are special tokens that a bias makes likely."""
    bias = {str(token): 100 for text in likely for token in server.token_ids(text)}
    fields = {"max_tokens": 300, "temperature": 1, "seed": 3, "logit_bias": bias, **fields}
    return server.client.chat.completions.create(model=server.model, messages=HELLO, **fields)


def check(call: Any) -> None:
    assert call.function.name in ("weather", "traffic")
    jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)


@pytest.mark.parametrize("seed", range(4))
def test_a_call_that_the_model_begins_is_finished_as_its_tool_wants(server: Served, seed: int) -> None:
    choice = chat(server, "<tool_call>", tools=TOOLS, parallel_tool_calls=False, seed=seed).choices[0]
    (call,) = choice.message.tool_calls
    check(call)
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")


def test_calls_continue_while_the_model_begins_more(server: Served) -> None:
    choice = chat(server, "<tool_call>", tools=TOOLS, max_tokens=200).choices[0]
    *whole, _ = choice.message.tool_calls
    assert len(whole) > 1 and len({call.id for call in whole}) == len(whole)
    for call in whole:
        check(call)
    assert choice.finish_reason == "length"


def test_text_and_calls_stream_with_their_arguments(server: Served) -> None:
    chunks = list(chat(server, "<tool_call>", tools=TOOLS, parallel_tool_calls=False, stream=True))
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert deltas[0].id and deltas[0].function.name in ("weather", "traffic")
    assert all(delta.id is None and delta.function.name is None for delta in deltas[1:])
    assert len(deltas) > 2
    jsonschema.validate(json.loads("".join(delta.function.arguments or "" for delta in deltas)), PARAMETERS)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_reply_may_do_without_a_call(server: Served) -> None:
    choice = chat(server, "<|im_end|>", tools=TOOLS).choices[0]
    assert choice.message.tool_calls is None and choice.finish_reason == "stop"


@pytest.mark.parametrize("parallel", [True, False])
def test_a_required_reply_has_only_calls(server: Served, parallel: bool) -> None:
    fields: Any = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": parallel}
    choice = chat(server, "<|im_end|>", extra_body=thinking(False), **fields).choices[0]
    (call,) = choice.message.tool_calls
    check(call)
    assert (choice.message.content, choice.finish_reason) == (None, "tool_calls")


def test_several_calls_may_be_required_unless_the_request_allows_one(server: Served) -> None:
    fields: Any = {"tools": TOOLS, "tool_choice": "required", "extra_body": thinking(False)}
    several = chat(server, "\n", **fields).choices[0].message.tool_calls
    assert len(several) > 1
    check(several[0])
    one = chat(server, "\n", parallel_tool_calls=False, **fields).choices[0].message.tool_calls
    assert len(one) == 1


def test_a_named_function_is_called(server: Served) -> None:
    named: Any = {"type": "function", "function": {"name": "traffic"}}
    choice = chat(server, tools=TOOLS, tool_choice=named, extra_body=thinking(False)).choices[0]
    (call,) = choice.message.tool_calls
    check(call)
    assert (call.function.name, choice.finish_reason) == ("traffic", "stop")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_call_cut_before_its_arguments_leaves_no_markup(server: Served, choice: Any, stream: bool) -> None:
    for most in (1, 2, 5):
        fields: Any = {"tools": TOOLS, "tool_choice": choice, "max_tokens": most, "stream": stream}
        found = chat(server, "<tool_call>", extra_body=thinking(False), **fields)
        choices = [chunk.choices[0] for chunk in found] if stream else [found.choices[0]]
        said = [choice.delta if stream else choice.message for choice in choices]
        assert not any(part.content or part.tool_calls for part in said)
        assert choices[-1].finish_reason == "length"


@pytest.mark.parametrize("kind", ["json_schema", "json_object", "regex", "choice"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_with_tools_is_a_call_or_the_answer_that_is_asked_for(
    server: Served, kind: str, stream: bool
) -> None:
    asked: dict[str, Any] = {
        "json_schema": {"response_format": ANSWER},
        "json_object": {"response_format": {"type": "json_object"}},
        "regex": {"extra_body": {"regex": '"(Paris|Berlin)"'}},
        "choice": {"extra_body": {"choice": ['"Paris"', '"Berlin"']}},
    }
    fields: Any = {"tools": TOOLS, "parallel_tool_calls": False, "stream": stream, **asked[kind]}
    for likely, calls in (("<tool_call>", True), ("{" if kind == "json_object" else '"', False)):
        found = chat(server, likely, **fields)
        choices = [chunk.choices[0] for chunk in found] if stream else [found.choices[0]]
        said = [choice.delta if stream else choice.message for choice in choices]
        content = "".join(part.content or "" for part in said)
        names = [call.function.name for part in said for call in part.tool_calls or [] if call.id]
        if calls:
            assert content == "" and len(names) == 1 and names[0] in ("weather", "traffic")
            assert choices[-1].finish_reason == "tool_calls"
        else:
            assert not names and content[0] == likely
            assert kind == "json_object" or json.loads(content) in CITY["enum"]


class Place(BaseModel):
    city: Literal["Paris", "Berlin"]


def test_openais_parser_reads_both_calls_and_answers(server: Served) -> None:
    tools = [openai.pydantic_function_tool(Place, name="travel")]
    for likely in ("<tool_call>", "{"):
        bias = {str(token): 100 for token in server.token_ids(likely)}
        completion = server.client.chat.completions.parse(
            model=server.model,
            messages=HELLO,
            tools=tools,
            parallel_tool_calls=False,
            response_format=Place,
            logit_bias=bias,
            seed=3,
            max_tokens=300,
        )
        message = completion.choices[0].message
        called = [call.function.parsed_arguments for call in message.tool_calls or []]
        assert isinstance(called[0] if likely == "<tool_call>" else message.parsed, Place)


def test_an_answer_with_tools_may_follow_reasoning(server: Served) -> None:
    for likely, begins in (('"', "content"), ("<tool_call>", "tool_calls")):
        message = (
            chat(server, "</think>", likely, tools=TOOLS, response_format=ANSWER, extra_body=thinking(True))
            .choices[0]
            .message
        )
        assert getattr(message, begins)
        assert message.content is None or json.loads(message.content) in CITY["enum"]


def uncovered_tools(**function: Any) -> Any:
    return [*TOOLS, {"type": "function", "function": {"name": "odd", "parameters": UNCOVERED, **function}}]


def test_a_strict_tool_that_can_not_be_enforced_is_refused_by_name(server: Served) -> None:
    looks_behind = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=b)c"}}}
    with pytest.raises(
        openai.BadRequestError, match=r"pattern.* at #/properties/a\S* of the function 'odd'"
    ) as caught:
        chat(server, tools=uncovered_tools(strict=True, parameters=looks_behind))
    assert caught.value.param == "tools[2].function.parameters"


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "odd"}}])
def test_a_tool_with_a_wrong_schema_is_refused_by_its_place_and_the_keyword_s(
    server: Served, choice: Any
) -> None:
    wrong = {**UNCOVERED["properties"], "b": {"type": "strng"}}
    odd = {"name": "odd", "parameters": {"type": "object", "properties": wrong}}
    with pytest.raises(
        openai.BadRequestError,
        match=r"parameters: the schema's keyword 'type' at #/properties/b/type of the function 'odd' is",
    ) as caught:
        chat(server, tools=[*TOOLS, {"type": "function", "function": odd}], tool_choice=choice)
    assert caught.value.param == "tools[2].function.parameters"


def test_a_tool_that_can_not_be_enforced_is_checked_when_it_is_called(server: Served) -> None:
    for seed in range(8):
        tools = uncovered_tools()[2:]
        choice = chat(
            server, "<tool_call>", '"', "}", tools=tools, parallel_tool_calls=False, seed=seed
        ).choices[0]
        for call in choice.message.tool_calls or []:
            jsonschema.validate(json.loads(call.function.arguments), UNCOVERED)
        assert choice.message.tool_calls or choice.finish_reason == "length"


TAG: Any = {
    "begin": "<tool_call>",
    "content": {"type": "json_schema", "json_schema": CITY},
    "end": "</tool_call>",
}
OLDER: Any = {
    "type": "structural_tag",
    "structures": [{"begin": "<tool_call>", "schema": CITY, "end": "</tool_call>"}],
    "triggers": ["<tool_call>"],
}
NEWER: Any = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<tool_call>"],
        "tags": [TAG],
        "stop_after_first": True,
    },
}


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": OLDER},
        {"response_format": NEWER},
        {"extra_body": {"structured_outputs": {"structural_tag": NEWER}}},
        {"extra_body": {"structured_outputs": {"structural_tag": json.dumps(OLDER)}}},
    ],
    ids=["older", "newer", "vllm", "vllm-text"],
)
def test_structural_tags_constrain_the_text_between_their_ends(server: Served, fields: Any) -> None:
    extra = {"skip_special_tokens": False, **fields.pop("extra_body", {})}
    choice = chat(server, "<tool_call>", extra_body=extra, **fields, max_tokens=40).choices[0]
    inside = re.findall("<tool_call>(.*?)</tool_call>", choice.message.content, re.DOTALL)
    assert inside and all(json.loads(each) in CITY["enum"] for each in inside)


def test_a_sequence_of_formats_is_followed_to_its_end(server: Served) -> None:
    elements = [
        {"type": "const_string", "value": "In "},
        TAG["content"],
        {"type": "const_string", "value": "!"},
    ]
    format = {"type": "structural_tag", "format": {"type": "sequence", "elements": elements}}
    choice = chat(server, response_format=format).choices[0]
    assert re.fullmatch('In "(Paris|Berlin)"!', choice.message.content)
    assert choice.finish_reason == "stop"


def thinking(wanted: bool) -> Any:
    return {"chat_template_kwargs": {"enable_thinking": wanted}}


@pytest.mark.parametrize("stream", [False, True])
def test_json_follows_the_reasoning_that_the_prompt_began(server: Served, stream: bool) -> None:
    reply = chat(
        server, response_format=ANSWER, extra_body=thinking(True), stream=stream, logit_bias=ending(server)
    )
    reasoning, content = parts(reply, stream)
    assert reasoning and json.loads(content) in CITY["enum"]


def ending(server: Served) -> dict[str, int]:
    """Reasoning ends soon, though not at once."""
    return {str(server.token_ids("</think>")[0]): 3}


def parts(reply: Any, stream: bool) -> tuple[str, str]:
    if not stream:
        message = reply.choices[0].message
        return message.reasoning_content, message.content
    deltas = [chunk.choices[0].delta for chunk in reply]
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    return reasoning, "".join(delta.content or "" for delta in deltas)


def test_reasoning_that_uses_up_the_tokens_ends_for_length(server: Served) -> None:
    never = {str(server.token_ids("</think>")[0]): -100}
    fields: Any = {"extra_body": thinking(True), "max_tokens": 12, "logit_bias": never}
    choice = chat(server, response_format=ANSWER, **fields).choices[0]
    assert choice.message.reasoning_content and not choice.message.content
    assert choice.finish_reason == "length"


def test_without_reasoning_json_comes_at_once(server: Served) -> None:
    message = chat(server, "<think>", response_format=ANSWER, extra_body=thinking(False)).choices[0].message
    assert json.loads(message.content) in CITY["enum"]
    assert not hasattr(message, "reasoning_content")


def test_a_model_that_may_reason_decides_whether_it_does(server: Served) -> None:
    bias = {str(server.token_ids(mark)[0]): weight for mark, weight in (("<think>", 50), ("</think>", 48))}
    message = chat(server, response_format=ANSWER, logit_bias=bias).choices[0].message
    assert message.reasoning_content and json.loads(message.content) in CITY["enum"]


@pytest.mark.parametrize(
    "extra", [{"regex": "[ab]{3}"}, {"choice": ["aab", "b"]}, {"guided_grammar": 'start: "aab"'}]
)
def test_every_constraint_begins_after_the_reasoning(server: Served, extra: Any) -> None:
    fields: Any = {"extra_body": {**thinking(True), **extra}, "logit_bias": ending(server)}
    message = chat(server, **fields).choices[0].message
    assert message.reasoning_content and re.fullmatch("[ab]{3}|b", message.content)


def test_calls_within_reasoning_are_ignored_and_calls_after_it_are_made(server: Served) -> None:
    bias = ending(server) | {str(server.token_ids("<tool_call>")[0]): 2}
    fields: Any = {"extra_body": thinking(True), "logit_bias": bias, "parallel_tool_calls": False}
    choice = chat(server, tools=TOOLS, tool_choice="required", **fields).choices[0]
    assert choice.message.reasoning_content
    (call,) = choice.message.tool_calls
    check(call)


def test_stop_strings_act_inside_a_structure(server: Served) -> None:
    choice = chat(server, response_format=ANSWER, stop=["r"]).choices[0]
    assert choice.message.content in ('"Pa', '"Be')
    assert choice.finish_reason == "stop"


def test_max_tokens_inside_json_end_it_for_length(server: Served) -> None:
    choice = chat(server, "<tool_call>", tools=TOOLS, max_tokens=30).choices[0]
    assert choice.finish_reason == "length"
