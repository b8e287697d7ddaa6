"""Conversations that a chat template refuses as they are get a form that it accepts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from arbora.frontend.core.conversation import render, render_beginning
from arbora.frontend.core.message_forms import (
    FORMS,
    MAX_TO_SEARCH,
    Message,
    first_accepted,
)
from arbora.frontend.core.messages import (
    CalledFunction,
    ChatMessage,
    Conversation,
    MessageToolCall,
)
from arbora.frontend.core.text import chat_template
from arbora.frontend.core.text.chat_template import ChatTemplate, UnrenderableError
from arbora.frontend.core.text.control_texts import ControlTexts
from arbora.frontend.stored.responses.items import messages_of
from arbora.frontend.stored.responses.protocol import Item
from arbora.runtime.errors import RequestError
from chat_templates import CHATML, GEMMA, LLAMA3, MISTRAL, MISTRAL_V1, TEMPLATES
from codex import first_turn, next_turn
from hypothesis import assume, given, settings
from hypothesis import strategies as st

ONE_SYSTEM = """\
{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}{{ raise_exception('System first!') }}{% endif %}
{{- '<' + message.role + '>' + message.content + '<end>' }}
{%- endfor %}"""
NEEDS_USER = """\
{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{%- if not users %}{{ raise_exception('No user!') }}{% endif %}
{%- for message in messages %}{{- '<' + message.role + '>' + message.content + '<end>' }}{%- endfor %}"""
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
CALL = {"id": "call12345", "type": "function", "function": {"name": "f", "arguments": "{}"}}
REPLY = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "src, docs"}]}


def template_of(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, {"bos_token": "<s>", "eos_token": "</s>"}, frozenset())


def chat(*texts: str) -> list[ChatMessage]:
    """`u:Hello` is a user's message, and so on."""
    roles = {"s": "system", "d": "developer", "u": "user", "a": "assistant"}
    return [ChatMessage(role=roles[text[0]], content=text[2:]) for text in texts]


def rendered_text(source: str, messages: list[ChatMessage]) -> str:
    return render(template_of(source), Conversation(messages), None).text


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
    result = render(template_of(CHATML), Conversation(messages), None)
    assert result.text.count("<|im_start|>") == 5
    assert [each["content"] for each in result.outline.messages] == ["A", "B", "C", "D"]


def test_the_outline_has_the_messages_that_were_rendered() -> None:
    messages = chat("s:A", "d:B", "u:C", "u:D")
    result = render(template_of(MISTRAL_V1), Conversation(messages), None)
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
    ).replace("message.content +", "message.content + (message.tool_calls or '') | string +")
    merged = render(template_of(one_each), Conversation(messages), None).outline.messages
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
        "Tool call IDs should be alphanumeric strings with length 9! It fails at message 6 of 8, counting "
        "the system prompt, of the role 'assistant': 'calls of weather'."
    )
    assert (caught.value.param, caught.value.code) == ("messages", "invalid_value")


def test_a_long_text_is_shortened_in_the_error() -> None:
    with pytest.raises(RequestError, match=rf"message 1 of 2, of the role 'assistant': '{'x' * 60}…'\."):
        rendered_text(MISTRAL_V1, chat("a:" + "x" * 100, "u:B"))


def test_a_continued_message_does_not_move_the_place_of_the_error() -> None:
    """The beginning that ends in the call has no text to continue."""
    messages = [
        *chat("u:A"),
        ChatMessage(
            role="assistant", tool_calls=[MessageToolCall(id="1", function=CalledFunction(name="weather"))]
        ),
        ChatMessage(role="tool", tool_call_id="1", content="Rain"),
        *chat("a:B"),
    ]
    continuing = Conversation(messages, begins_reply=False, continues_last=True)
    with pytest.raises(RequestError, match="It fails at message 2 of 4, of the role 'assistant'"):
        render(template_of(MISTRAL), continuing, None)


@pytest.mark.parametrize("source", [LLAMA3, NEEDS_USER])
def test_a_conversation_that_needs_a_user_is_not_given_one(source: str) -> None:
    template = template_of(source)
    system, whole = chat("s:Be brief."), chat("s:Be brief.", "u:Hello")
    assert "Be brief." in render(template, Conversation(whole), TOOLS).text
    with pytest.raises(RequestError, match="user"):
        render(template, Conversation(system), TOOLS)


@pytest.mark.parametrize("source", [GEMMA, ONE_SYSTEM, CHATML])
def test_a_beginning_has_the_form_of_the_whole_conversation(source: str) -> None:
    template = template_of(source)
    text, _, form = render(template, Conversation(chat("s:Be brief.", "s:B", "u:C", "u:D")), None)
    part = render_beginning(template, Conversation(chat("s:Be brief.")), None, form)
    assert part is not None
    before, shared, _ = part.partition("Be brief.")
    assert text.startswith(before + shared)


@pytest.mark.parametrize("source", [LLAMA3, NEEDS_USER])
def test_a_beginning_that_needs_a_user_gets_an_empty_message(source: str) -> None:
    template = template_of(source)
    text, _, form = render(template, Conversation(chat("s:A", "u:C")), TOOLS)
    part = render_beginning(template, Conversation(chat("s:A")), TOOLS, form)
    assert part is not None
    before, _, after = text.partition("C<")
    assert part.startswith(before) and after


def test_a_beginning_gets_no_form_of_its_own() -> None:
    one_user = "{% if messages | length > 1 %}{{ raise_exception('Several!') }}{% endif %}" + CHATML
    template = template_of(one_user)
    messages = chat("u:A", "u:B")
    assert render(template, Conversation(messages), None).outline.messages[0]["content"] == "A\n\nB"
    assert render_beginning(template, Conversation(messages), None, FORMS[0]) is None


@pytest.mark.parametrize("count", [8, 256, 257, 1000])
def test_the_number_of_renders_is_bounded(count: int) -> None:
    class Counting(ChatTemplate):
        renders = 0

        def render(self, *arguments: Any, **named: Any) -> str:
            self.renders += 1
            return super().render(*arguments, **named)

    refusing = "{% if messages | length > 2 %}{{ raise_exception('Too many!') }}{% endif %}"
    template = Counting({"default": refusing}, {}, frozenset())
    template.support(with_tools=False)
    template.renders = 0
    texts = ["s:A", "u:B", "s:C", "a:D", "a:E", "u:F", "a:G", "u:H"]
    messages = chat(*texts, *(f"{'au'[number % 2]}:I" for number in range(count - len(texts))))
    with pytest.raises(RequestError, match="Too many!") as caught:
        render(template, Conversation(messages), None)
    is_searched = count <= MAX_TO_SEARCH
    assert ("It fails at message" in caught.value.message) == is_searched
    assert template.renders <= len(FORMS) + (count.bit_length() if is_searched else 0)


def test_a_message_is_copied_once_for_all_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[Message] = []
    copy = chat_template._copy_for_template

    def counted(message: Message, control: ControlTexts) -> Message:
        copied.append(message)
        return copy(message, control)

    template = template_of(GEMMA)
    template.support(with_tools=False)
    monkeypatch.setattr(chat_template, "_copy_for_template", counted)
    render(template, Conversation(chat("s:A", "u:B", "a:C", "u:D")), None)
    # The last form has the system message as the user's, joined with the first of the user's.
    assert [each["content"] for each in copied] == ["A", "B", "C", "D", "A", "A\n\nB"]


def test_a_continued_message_ends_at_its_text_in_each_form() -> None:
    continuing = Conversation(
        chat("s:A", "u:B", "a:C"), begins_reply=False, continues_last=True, variables={"bos_token": ""}
    )
    text = render(template_of(GEMMA), continuing, None).text
    assert text == "<start_of_turn>user\nA\n\nB<end_of_turn>\n<start_of_turn>model\nC"


CHANGING = ("llama3", "mistral", "mistral-v1", "gemma", "deepseek-r1", "llama2")
"""the templates that refuse messages, or leave some out"""
TEXTS = st.sampled_from(["", "A", "B"])
MESSAGES: st.SearchStrategy[list[Message]] = st.lists(
    st.one_of(
        st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": TEXTS}),
        st.fixed_dictionaries(
            {"role": st.just("assistant"), "content": TEXTS},
            optional={"reasoning_content": TEXTS, "tool_calls": st.just([CALL])},
        ),
        st.fixed_dictionaries(
            {"role": st.just("tool"), "content": TEXTS, "tool_call_id": st.just("call12345")}
        ),
    ),
    min_size=1,
    max_size=8,
)


def is_beginning(part: Sequence[Message], whole: Sequence[Message]) -> bool:
    """Whether the messages are the same, but the last one may go on."""
    *before, last = part
    same = whole[len(before)]
    return before == whole[: len(before)] and all(
        same.get(name, [] if name == "tool_calls" else "")[: len(value)] == value
        for name, value in last.items()
    )


@settings(deadline=None)
@given(MESSAGES, st.data())
def test_each_form_changes_a_beginning_to_a_beginning(messages: list[Message], data: st.DataObject) -> None:
    part = messages[: data.draw(st.integers(1, len(messages)))]
    for form in FORMS:
        assert is_beginning(form(part), form(messages))


@pytest.mark.parametrize(
    ("name", "tools"), [(name, None) for name in CHANGING] + [("llama3", TOOLS), ("mistral", TOOLS)]
)
@settings(deadline=None, max_examples=30)
@given(messages=MESSAGES, data=st.data())
def test_a_turn_begins_with_the_messages_of_the_turn_before(
    name: str, tools: list[dict[str, Any]] | None, messages: list[Message], data: st.DataObject
) -> None:
    template = template_of(TEMPLATES[name])
    loses = not template.support(with_tools=tools is not None).several_systems

    def accepted(turn: list[Message]) -> list[Message] | None:
        try:
            return first_accepted(
                lambda form: template.render(form, tools=tools), turn, loses_system_messages=loses
            ).messages
        except UnrenderableError:
            return None

    ends = [number for number, each in enumerate(messages, 1) if each["role"] == "user"]
    assume(ends)
    part = accepted(messages[: data.draw(st.sampled_from(ends))])
    whole = accepted(messages)
    assert part is None or whole is None or is_beginning(part, whole)
