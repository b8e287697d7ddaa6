"""Tools on a model whose chat template would leave them out: nothing that the client sent is lost."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from arbora.frontend.core.conversation import render, render_beginning
from arbora.frontend.core.messages import (
    CalledFunction,
    ChatMessage,
    Conversation,
    MessageToolCall,
)
from arbora.frontend.core.text.chat_template import ChatTemplate
from arbora.frontend.core.tools.families import FORMATS
from arbora.frontend.core.tools.tool_formats import detect_format
from chat_templates import CHATML, GEMMA, MISTRAL, PYTHONIC, QWEN3, TEMPLATES

WITHOUT_SYSTEM = """\
{% for message in messages %}{% if message['role'] == 'user' %}{{ '<user>' + message['content'] }}\
{% elif message['role'] == 'assistant' %}{{ '<assistant>' + message['content'] }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}<assistant>{% endif %}"""
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "The sky over a town.", "parameters": PARAMETERS},
    },
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
]
QUESTION = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content="In Köln?")]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln, \\"Dom\\": 1"}}\n</tool_call>'


def template_of(source: str, **named: str) -> ChatTemplate:
    variables = {"bos_token": "<s>", "eos_token": "</s>"}
    return ChatTemplate({"default": source, **named}, variables, frozenset())


def calls_of(*calls: tuple[str, str], content: str = "") -> ChatMessage:
    return ChatMessage(
        role="assistant",
        content=content,
        tool_calls=[
            MessageToolCall(id=f"call0000{index}", function=CalledFunction(name=name, arguments=arguments))
            for index, (name, arguments) in enumerate(calls)
        ],
    )


def results_of(*texts: str) -> list[ChatMessage]:
    return [
        ChatMessage(role="tool", tool_call_id=f"call0000{index}", content=text)
        for index, text in enumerate(texts)
    ]


def prompt(template: ChatTemplate, messages: list[ChatMessage], tools: Any = TOOLS) -> str:
    return render(template, Conversation(messages), tools).text


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_template_loses_tools_calls_or_results(name: str) -> None:
    turns = [calls_of(("weather", '{"city": "Oslo"}')), *results_of("Sunny.")]
    for tools in (TOOLS, None):
        text = prompt(template_of(TEMPLATES[name]), [*QUESTION[1:], *turns], tools)
        for word in ("weather", "Oslo", "Sunny.", *(("The sky over a town.", "clock") if tools else ())):
            assert word in text


def test_tools_follow_the_system_prompt() -> None:
    text = prompt(template_of(CHATML), QUESTION)
    system = text[: text.index("<|im_end|>")]
    assert system.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert [json.loads(line) for line in system.splitlines() if line.startswith('{"type"')] == TOOLS


def test_a_chat_without_a_system_prompt_gets_one_with_the_tools() -> None:
    assert prompt(template_of(CHATML), QUESTION[1:]).startswith("<|im_start|>system\n# Tools\n")


def test_a_template_without_a_system_role_gets_the_tools_from_the_user() -> None:
    text = prompt(template_of(GEMMA), QUESTION)
    assert text.startswith("<s><start_of_turn>user\nBe brief.\n\n# Tools\n")
    assert text.count("<start_of_turn>user") == 1


def test_a_template_that_drops_the_system_message_gets_the_tools_from_the_user() -> None:
    assert prompt(template_of(WITHOUT_SYSTEM), QUESTION[1:]).startswith("<user># Tools\n")


@pytest.mark.parametrize(
    "arguments",
    [
        '{"city": "Köln, \\"Dom\\": 1"}',
        '{"city":"Köln, \\"Dom\\": 1"}',
        '{\n  "city" : "Köln, \\"Dom\\": 1"\n}',
        {"city": 'Köln, "Dom": 1'},
    ],
    ids=["as written", "compact", "indented", "object"],
)
def test_the_next_turn_begins_with_the_call_as_the_model_wrote_it(arguments: Any) -> None:
    before = prompt(template_of(CHATML), QUESTION)
    after = prompt(template_of(CHATML), [*QUESTION, calls_of(("weather", arguments)), *results_of("Sunny.")])
    assert after.startswith(f"{before}{CALL}<|im_end|>")
    assert "<|im_start|>user\n<tool_response>\nSunny.\n</tool_response><|im_end|>" in after


def test_calls_are_written_as_required_calls_are_imposed() -> None:
    format = detect_format(template_of(CHATML))
    imposed = format.write([("clock", {})])
    text = prompt(template_of(CHATML), [*QUESTION, calls_of(("clock", "{}"), ("clock", "{}"), content="So:")])
    assert f"<|im_start|>assistant\nSo:\n{imposed}\n{imposed}<|im_end|>" in text


def test_the_results_of_one_turn_are_one_message_of_the_user() -> None:
    calls = calls_of(("clock", "{}"), ("clock", "{}"))
    text = prompt(template_of(GEMMA), [*QUESTION[1:], calls, *results_of("1 pm", "2 pm")])
    first, second = (f"<tool_response>\n{time}\n</tool_response>" for time in ("1 pm", "2 pm"))
    assert f"<start_of_turn>user\n{first}\n{second}<end_of_turn>" in text


def test_arguments_that_are_no_json_object_stay_as_they_are() -> None:
    text = prompt(template_of(CHATML), [*QUESTION, calls_of(("weather", '{"city" :"Kö'))])
    assert '"arguments": {"city" :"Kö}' in text


def test_calls_that_only_a_template_with_tools_prints_are_written_without_tools_too() -> None:
    template = template_of(CHATML, tool_use=QWEN3)
    turns = [*QUESTION, calls_of(("weather", '{"city": "Oslo"}')), *results_of("Sunny.")]
    assert prompt(template, turns).count("<tool_call>\n{") == 2  # one of them is the template's explanation
    assert prompt(template, turns, None).count("<tool_call>\n{") == 1


def test_a_template_that_prints_calls_but_no_tools_sees_one_form_of_calls() -> None:
    source = MISTRAL.replace("tools is not none and message == user_messages[-1]", "false")
    turns = [*QUESTION[1:], calls_of(("weather", '{"city": "Oslo"}')), *results_of("Sunny.")]
    assert detect_format(template_of(source)) == FORMATS["hermes"]
    assert "[TOOL_CALLS]" not in prompt(template_of(source), turns)
    assert "[TOOL_CALLS]" in prompt(template_of(source), turns, None)


def test_a_template_that_prints_tools_but_no_calls_gets_calls_in_its_own_form() -> None:
    start = PYTHONIC.index("    {%- for call in message.tool_calls")
    end = PYTHONIC.index("    {{- (message.content or '')")
    template = template_of(PYTHONIC[:start] + PYTHONIC[end:])
    turns = [*QUESTION, calls_of(("weather", '{"city":"Oslo"}'), ("clock", "{}")), *results_of("Sunny.")]
    text = prompt(template, turns)
    assert '<|header|>assistant\n[weather(city="Oslo"), clock()]</s>' in text
    assert "<tool_response>\nSunny.\n</tool_response>" in text


def test_the_text_up_to_a_breakpoint_begins_the_whole_prompt() -> None:
    template = template_of(CHATML)
    whole = render(template, Conversation([*QUESTION, ChatMessage(role="assistant", content="Yes.")]), TOOLS)
    part = render_beginning(template, Conversation(QUESTION), TOOLS, whole.form)
    assert part is not None and part.count("# Tools") == 1 and whole.text.startswith(part)


def test_the_log_warns_once_of_a_template_that_leaves_out_tools(caplog: pytest.LogCaptureFixture) -> None:
    lacking, complete = template_of(CHATML), template_of(QWEN3)
    with caplog.at_level(logging.WARNING):
        prompt(complete, QUESTION)
        prompt(lacking, QUESTION, None)
        assert caplog.messages == []
        prompt(lacking, QUESTION)
        prompt(lacking, QUESTION)
    (message,) = caplog.messages
    assert "the model's chat template leaves out tools" in message
