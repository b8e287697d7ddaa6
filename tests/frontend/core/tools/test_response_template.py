"""transformers' declarative response templates become descriptions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from arbora.frontend.core.text.chat_template import ChatTemplate
from arbora.frontend.core.text.reasoning import HARMONY, ReasoningFormat, detect_reasoning
from arbora.frontend.core.tools.call_format import ToolFormat
from arbora.frontend.core.tools.families import FORMATS
from arbora.frontend.core.tools.reply_parser import (
    ContentDelta,
    ReasoningDelta,
    ReplyParser,
    ToolCallDelta,
    ToolReading,
)
from arbora.frontend.core.tools.response_template import DeclaredFormats, read_response_template
from arbora.frontend.core.tools.tool_formats import detect_format
from family_templates import CLOCK, TYPES, family
from tokenizers_for_tests import tokenizer_of_kind
from transformers.utils.chat_parsing import parse_response


def template(tool_calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    thought = {"open": "<think>", "close": "</think>"}
    others = {"reasoning_content": thought, "content": {}, **fields}
    return {
        "start_anchor": "<|assistant|>",
        "fields": {**others, "tool_calls": {"repeats": True, **tool_calls}},
    }


CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
DECLARED: dict[str, dict[str, Any]] = {
    "hermes": template(
        {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        }
    ),
    "qwen_xml": template(
        {
            "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</function>\s*</tool_call>",
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
            "transform": CALL,
        }
    ),
    "gemma": template(
        {
            "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
            "close": "<tool_call|>",
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
            "transform": CALL,
        },
        reasoning_content={"open": "<|channel>thought\n", "close": "<channel|>"},
    ),
    "lfm2": template(
        {
            "open": "<|tool_call_start|>",
            "close": "<|tool_call_end|>",
            "content": "python-call-list",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
            "transform_each": True,
        }
    ),
    "nemotron": template(
        {
            "open": "<TOOLCALL>",
            "close": "</TOOLCALL>",
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
            "transform_each": True,
        }
    ),
}


def declared(name: str) -> DeclaredFormats:
    return read_response_template(DECLARED[name])


def declaring(source: str, response_template: object) -> ChatTemplate:
    return ChatTemplate({"default": source}, {}, frozenset(), response_template=response_template)


def calls_of(format: ToolFormat, reasoning: ReasoningFormat | None, text: str) -> list[tuple[str, Any]]:
    tools = ToolReading(format, lambda call: True, names=("find",), types=TYPES)
    found: list[tuple[str, Any]] = []
    for delta in ReplyParser(reasoning, tools).push(text, True):
        match delta:
            case ToolCallDelta(_, _, str(name), arguments):
                found.append((name, json.loads(arguments)))
            case ContentDelta(said):
                found.append(("content", said))
            case ReasoningDelta(said):
                found.append(("reasoning", said))
    return found


@pytest.mark.parametrize("name", DECLARED)
def test_a_declared_format_reads_what_transformers_reads(name: str) -> None:
    formats = declared(name)
    assert formats.tools is not None and formats.reasoning is not None
    plain = {"note": "a <b>", "tags": ["x"], "count": 3}
    start, end = formats.reasoning.start, formats.reasoning.end
    written = FORMATS[name].write([("find", plain)])
    text = f"{start}Hm.{end}{written}"
    message = parse_response(text, DECLARED[name], prefix="", tools=None)
    (call,) = message["tool_calls"][0] if name in ("lfm2", "nemotron") else message["tool_calls"]
    assert call["function"]["name"] == "find"
    found = calls_of(formats.tools, formats.reasoning, text)
    assert found == [("reasoning", message["reasoning_content"]), ("find", plain)]


@pytest.mark.parametrize("name", DECLARED)
def test_a_known_family_keeps_its_own_description(name: str) -> None:
    chat_template, known = family(name)
    assert detect_format(declaring(chat_template.source(), DECLARED[name])) == known


def test_a_declared_format_without_a_family_learns_its_white_space() -> None:
    changed = json.loads(json.dumps(DECLARED["hermes"]).replace("tool_call>", "use>"))
    chat_template, _ = family("hermes")
    source = chat_template.source().replace("tool_call>", "use>")
    found = detect_format(declaring(source, changed))
    assert found.write([CLOCK]) == FORMATS["hermes"].write([CLOCK]).replace("tool_call>", "use>")


def test_marks_of_content_belong_to_the_description_of_reasoning() -> None:
    given = template(
        {
            "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+)"
            r"\s*<\|constrain\|>json<\|message\|>",
            "close": "<|call|>",
            "content": "json",
            "transform": CALL,
        },
        reasoning_content={"open": HARMONY.start, "close": HARMONY.end},
        content={"open": HARMONY.answer, "close": ["<|end|>", "<|return|>"]},
    )
    formats = read_response_template(given)
    assert formats.reasoning is not None and formats.reasoning.answer == HARMONY.answer
    assert detect_reasoning(None, tokenizer_of_kind("byte-level"), formats.reasoning) == HARMONY._replace(
        by_template=True
    )
    call = '<|channel|>commentary to=functions.find <|constrain|>json<|message|>{"count": 1}<|call|>'
    text = f"{HARMONY.start}Hm.<|end|>{HARMONY.answer}Hi<|end|>{call}"
    assert formats.tools is not None
    expected = [("reasoning", "Hm."), ("content", "Hi"), ("find", {"count": 1})]
    assert calls_of(formats.tools, formats.reasoning, text) == expected


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ({"open": "<c>", "close": "</c>", "content": "kv-lines"}, "kv-lines"),
        ({"open_pattern": r"<c (?P<other>\w+)>", "content": "json", "transform": "{other}"}, "other"),
        ({"open_pattern": r"<c>(?=x)", "content": "json"}, "assert"),
    ],
)
def test_what_can_not_be_read_is_logged_and_left_out(
    field: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = read_response_template(template(field))
    assert found.tools is None and found.reasoning == ReasoningFormat("<think>", "</think>", by_template=True)
    assert said in caplog.text


@pytest.mark.parametrize("given", [None, {}, {"fields": 3}])
def test_without_a_template_nothing_is_declared(given: dict[str, Any]) -> None:
    assert read_response_template(given) == DeclaredFormats()
