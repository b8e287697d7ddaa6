"""Conversations that a chat template refuses as they are get a form that it accepts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from arbora.frontend.request.conversation import render, rendered
from arbora.frontend.request.messages import CalledFunction, ChatMessage, Conversation, MessageToolCall
from arbora.frontend.responses.items import messages_of
from arbora.frontend.responses.protocol import Item
from arbora.frontend.text.chat_template import ChatTemplate
from arbora.runtime.errors import RequestError
from chat_templates import CHATML, GEMMA, MISTRAL, MISTRAL_V1, TEMPLATES
from codex import first_turn, next_turn

ONE_SYSTEM = """\
{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}{{ raise_exception('System first!') }}{% endif %}
{{- '<' + message.role + '>' + message.content + '<end>' }}
{%- endfor %}"""
REPLY = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "src, docs"}]}


def template_of(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, {"bos_token": "<s>", "eos_token": "</s>"}, frozenset())


def chat(*texts: str) -> list[ChatMessage]:
    """`u:Hello` is a user's message, and so on."""
    roles = {"s": "system", "d": "developer", "u": "user", "a": "assistant"}
    return [ChatMessage(role=roles[text[0]], content=text[2:]) for text in texts]


def rendered_text(source: str, messages: list[ChatMessage]) -> str:
    return render(template_of(source), Conversation(messages), None)


def codex_messages(request: dict[str, Any]) -> list[ChatMessage]:
    items = msgspec.convert(request["input"], list[Item])
    return [
        ChatMessage(role="system", content=request["instructions"]),
        *messages_of(items, (", ", ": ")),
    ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_turns_of_codex_are_rendered_with_all_texts(name: str) -> None:
    request = first_turn("tiny")
    text = rendered_text(TEMPLATES[name], codex_messages(request))
    expected = [
        "<cwd>/work</cwd>",
        "List the files.",
        "You write code in the Codex CLI.",
        "Read only.",
    ]
    request = next_turn(request, [REPLY], {})
    request["input"].append({"type": "message", "role": "user", "content": "Thanks."})
    next_text = rendered_text(TEMPLATES[name], codex_messages(request))
    for each in expected:
        assert text.count(each) == next_text.count(each) == 1
    assert next_text.count("src, docs") == next_text.count("Thanks.") == 1


@pytest.mark.parametrize("source", [MISTRAL_V1, GEMMA, ONE_SYSTEM, CHATML])
def test_the_beginning_of_a_conversation_renders_to_a_beginning(source: str) -> None:
    whole = chat("s:A", "d:B", "u:C", "u:D", "a:E", "s:F", "u:G", "a:H", "a:I", "u:J")
    turns = [rendered_text(source, whole[:length]) for length in (4, 7, 10)]
    after = [
        turn.removesuffix("<start_of_turn>model\n").removesuffix("<|im_start|>assistant\n") for turn in turns
    ]
    assert turns[1].startswith(after[0])
    assert turns[2].startswith(after[1])
    assert [turn.count("F") for turn in turns] == [0, 1, 1]


def test_a_conversation_that_the_template_accepts_stays_as_it_is() -> None:
    messages = chat("s:A", "s:B", "u:C", "u:D")
    result = rendered(template_of(CHATML), Conversation(messages), None)
    assert result.text.count("<|im_start|>") == 5
    assert [each["content"] for each in result.outline.messages] == ["A", "B", "C", "D"]


def test_the_outline_has_the_messages_that_were_rendered() -> None:
    messages = chat("s:A", "d:B", "u:C", "u:D")
    result = rendered(template_of(MISTRAL_V1), Conversation(messages), None)
    assert result.text == "<s> [INST] A\n\nB\n\nC\n\nD [/INST]"
    assert [each["content"] for each in result.outline.messages] == ["A\n\nB", "C\n\nD"]


def test_a_system_message_amid_a_chat_becomes_the_users() -> None:
    messages = chat("s:A", "u:B", "a:C", "s:D", "u:E")
    assert rendered_text(MISTRAL_V1, messages) == "<s> [INST] A\n\nB [/INST] C</s> [INST] D\n\nE [/INST]"
    assert rendered_text(ONE_SYSTEM, messages).endswith("<assistant>C<end><user>D<end><user>E<end>")


@pytest.mark.parametrize("name", ["deepseek-r1", "llama2"])
def test_a_template_that_would_lose_system_messages_gets_only_the_first(name: str) -> None:
    text = rendered_text(TEMPLATES[name], chat("s:Say A.", "d:Say B.", "u:C", "a:D", "s:Say E.", "u:F"))
    assert [text.count(each) for each in ("Say A.\n\nSay B.", "C", "D", "Say E.", "F")] == [1] * 5


def test_a_template_without_a_system_role_gets_the_text_from_the_user() -> None:
    text = rendered_text(GEMMA, chat("s:Be brief.", "u:Hello"))
    assert text.startswith("<s><start_of_turn>user\nBe brief.\n\nHello<end_of_turn>\n")


def test_merged_messages_of_the_assistant_keep_reasoning_and_calls() -> None:
    def call(name: str) -> MessageToolCall:
        return MessageToolCall(id=name * 3, function=CalledFunction(name=name, arguments="{}"))

    messages = [
        *chat("u:A"),
        ChatMessage(role="assistant", content="B", reasoning_content="first", tool_calls=[call("one")]),
        ChatMessage(role="assistant", reasoning_content="second", tool_calls=[call("two")]),
        ChatMessage(role="tool", tool_call_id="one", content="1"),
        ChatMessage(role="tool", tool_call_id="two", content="2"),
    ]
    one_each = ONE_SYSTEM.replace(
        "message.role == 'system' and not loop.first",
        "message.role == 'assistant' and loop.previtem.role == 'assistant'",
    )
    merged = rendered(template_of(one_each), Conversation(messages), None).outline.messages
    assert [each["role"] for each in merged] == ["user", "assistant", "tool", "tool"]
    assert (merged[1]["content"], merged[1]["reasoning_content"]) == ("B", "first\nsecond")
    assert [each["function"]["name"] for each in merged[1]["tool_calls"]] == ["one", "two"]


def test_an_error_names_the_message_at_which_the_template_fails() -> None:
    called = MessageToolCall(id="call_1", function=CalledFunction(name="weather", arguments="{}"))
    messages = [
        *chat("s:A", "u:B", "u:C", "a:D", "u:E"),
        ChatMessage(role="assistant", tool_calls=[called]),
        ChatMessage(role="tool", tool_call_id="call_1", content="Rain"),
        *chat("u:F"),
    ]
    with pytest.raises(RequestError) as caught:
        rendered_text(MISTRAL, messages)
    assert caught.value.message.endswith(
        "Tool call IDs should be alphanumeric strings with length 9! It fails at message 6 of 8, of the role "
        "'assistant': 'calls of weather'."
    )
    assert (caught.value.param, caught.value.code) == ("messages", "invalid_value")


def test_a_long_text_is_shortened_in_the_error() -> None:
    with pytest.raises(RequestError, match=rf"message 1 of 2, of the role 'assistant': '{'x' * 60}…'\."):
        rendered_text(MISTRAL_V1, chat("a:" + "x" * 100, "u:B"))
