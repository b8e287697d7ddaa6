"""Anthropic's messages become the conversation that a chat template renders."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from arbora.frontend.api.anthropic.conversation import conversation_of
from arbora.frontend.api.anthropic.protocol import PromptRequest
from arbora.frontend.api.anthropic.tools import template_id, wire_id
from arbora.frontend.core.conversation import template_messages
from arbora.frontend.core.messages import Conversation
from arbora.runtime.errors import RequestError
from hypothesis import given
from hypothesis import strategies as st

TEXT = {"type": "text", "text": "Hello"}
CALL = {"type": "tool_use", "id": "toolu_abc", "name": "look", "input": {"at": [1, 2.0]}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_abc", "content": "Sun."}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
Template = list[dict[str, object]]


def request_of(messages: Any, **fields: Any) -> PromptRequest:
    return msgspec.json.decode(json.dumps({"messages": messages, **fields}), type=PromptRequest)


def converted(messages: Any, **fields: Any) -> Conversation:
    return conversation_of(request_of(messages, **fields))


def rendered(messages: Any, **fields: Any) -> Template:
    """The messages as the template gets them."""
    return template_messages(converted(messages, **fields).messages)


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def refusal(messages: Any, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        converted(messages, **fields)
    return caught.value


def test_a_string_and_a_text_block_mean_the_same() -> None:
    assert rendered([{"role": "user", "content": "Hello"}]) == rendered([user(TEXT)])
    assert rendered([user(TEXT)]) == [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("system", ["Be brief.", [{**TEXT, "text": "Be brief.", "cache_control": {}}]])
def test_the_system_prompt_comes_first(system: Any) -> None:
    first, _ = rendered([user(TEXT)], system=system)
    assert first == {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize("system", ["", [], None])
def test_an_empty_system_prompt_is_no_message(system: Any) -> None:
    assert rendered([user(TEXT)], system=system) == [{"role": "user", "content": "Hello"}]


def test_a_system_message_stays_where_it_is() -> None:
    roles = [each["role"] for each in rendered([user(TEXT), {"role": "system", "content": "x"}, user(TEXT)])]
    assert roles == ["user", "system", "user"]


def test_the_blocks_of_a_message_are_joined_by_line_breaks() -> None:
    assert rendered([user(TEXT, TEXT)]) == [{"role": "user", "content": "Hello\nHello"}]


def test_neighbouring_messages_of_one_role_are_one_turn() -> None:
    assert rendered([user(TEXT), user(TEXT)]) == rendered([user(TEXT, TEXT)])
    turns = rendered([user(TEXT), assistant(TEXT), assistant(CALL), user(RESULT)])
    assert [turn["role"] for turn in turns] == ["user", "assistant", "tool"]


def test_a_call_gets_an_id_that_templates_know_and_keeps_its_input() -> None:
    turn: Any = rendered([user(TEXT), assistant(TEXT, CALL), user(RESULT)])[1]
    (call,) = turn["tool_calls"]
    assert (turn["content"], call["id"], call["function"]["name"]) == ("Hello", "call_abc", "look")
    assert call["function"]["arguments"] == json.dumps(CALL["input"])


def test_a_call_without_input_has_no_arguments() -> None:
    call = {key: value for key, value in CALL.items() if key != "input"}
    _, turn, _ = rendered([user(TEXT), assistant(call), user(RESULT)])
    assert turn["tool_calls"][0]["function"]["arguments"] == "{}"  # type: ignore[index]


@pytest.mark.parametrize(
    ("content", "text"),
    [("Sun.", "Sun."), ([TEXT, TEXT], "Hello\nHello"), (None, ""), ([], ""), ("", "")],
)
def test_a_result_is_a_tools_message(content: Any, text: str) -> None:
    found = rendered([user({**RESULT, "content": content})])
    assert found == [{"role": "tool", "tool_call_id": "call_abc", "content": text}]


@pytest.mark.parametrize(
    ("content", "text"), [("not found", "Error: not found"), ("ERROR 5", "ERROR 5"), (None, "Error: ")]
)
def test_a_failed_result_says_so(content: str | None, text: str) -> None:
    (found,) = rendered([user({**RESULT, "content": content, "is_error": True})])
    assert found["content"] == text


def test_text_around_results_keeps_its_place() -> None:
    found = rendered([user(TEXT, RESULT, RESULT, TEXT)])
    assert [each["role"] for each in found] == ["user", "tool", "tool", "user"]


def test_thinking_is_the_turns_reasoning() -> None:
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "x"}
    _, turn, _ = rendered([user(TEXT), assistant(thinking, TEXT), user(TEXT)])
    assert (turn["reasoning_content"], turn["content"]) == ("Hm.", "Hello")


@pytest.mark.parametrize(
    "block",
    [
        {"type": "redacted_thinking", "data": "EqQBCgIYAhIM"},
        {"type": "thinking", "thinking": "", "signature": "EqQBCgIYAhIM"},
    ],
    ids=["redacted", "another server's"],
)
def test_thinking_that_nobody_here_can_read_is_left_out(block: Any) -> None:
    assert rendered([user(TEXT), assistant(block, TEXT)]) == rendered([user(TEXT), assistant(TEXT)])


def test_a_last_message_of_the_assistant_is_continued() -> None:
    conversation = converted([user(TEXT), assistant(TEXT)])
    assert (conversation.begins_reply, conversation.continues_last) == (False, True)
    conversation = converted([user(TEXT), assistant(TEXT), user(TEXT)])
    assert (conversation.begins_reply, conversation.continues_last) == (True, False)


@pytest.mark.parametrize("block", [CALL, {"type": "thinking", "thinking": "Hm.", "signature": ""}])
def test_a_message_that_ends_with_another_block_is_not_continued(block: Any) -> None:
    error = refusal([user(TEXT), assistant(TEXT, block)])
    assert error.param == "messages[1].content"
    assert repr(block["type"]) in error.message


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([user(IMAGE)], "messages[0].content[0]"),
        (
            [user(TEXT, {"type": "document", "source": {"type": "text", "data": "x"}})],
            "messages[0].content[1]",
        ),
        (
            [user(TEXT), assistant({"type": "server_tool_use", "id": "a", "name": "b"})],
            "messages[1].content[0]",
        ),
        ([user(TEXT, CALL)], "messages[0].content[1]"),
        ([user(TEXT), assistant(RESULT), user(TEXT)], "messages[1].content[0]"),
        ([user({**RESULT, "content": [IMAGE]})], "messages[0].content[0].content[0]"),
        ([user({"type": "tool_result", "content": "x"})], "messages[0].content[0].tool_use_id"),
        ([user({**RESULT, "content": {"a": 1}})], "messages[0].content[0].content"),
        ([user({**RESULT, "content": [{"type": 5}]})], "messages[0].content[0].content[0].type"),
        ([user({"type": "text"})], "messages[0].content[0].text"),
        ([user(TEXT), assistant({**CALL, "id": ""}), user(TEXT)], "messages[1].content[0].id"),
        ([user(TEXT), assistant({**CALL, "name": None}), user(TEXT)], "messages[1].content[0].name"),
        ([user(TEXT), assistant({**CALL, "input": "{}"}), user(TEXT)], "messages[1].content[0].input"),
        ([user(TEXT), assistant({"type": "thinking"}), user(TEXT)], "messages[1].content[0].thinking"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_block_that_cannot_be_served_is_named(messages: Any, param: str) -> None:
    assert refusal(messages).param == param


def test_a_picture_is_refused_by_its_type() -> None:
    assert "'image'" in refusal([user(IMAGE)]).message


def test_a_system_prompt_of_pictures_is_refused() -> None:
    assert refusal([user(TEXT)], system=[IMAGE]).param == "system[0]"


@given(st.from_regex(r"call_[A-Za-z0-9]{24}|[A-Za-z0-9]{9}", fullmatch=True))
def test_an_id_survives_the_way_to_the_client_and_back(id: str) -> None:
    assert wire_id(id).startswith("toolu_")
    assert template_id(wire_id(id)) == id


def test_an_id_of_another_api_stays() -> None:
    assert template_id("call_1") == "call_1"


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_every_input_reaches_the_template_with_its_value(arguments: dict[str, object]) -> None:
    messages = [user(TEXT), assistant({**CALL, "input": arguments}), user(RESULT)]
    call = rendered(messages)[1]["tool_calls"][0]  # type: ignore[index]
    assert json.loads(call["function"]["arguments"]) == arguments


@given(st.lists(st.lists(TEXTS, min_size=1, max_size=3), min_size=1, max_size=4))
def test_no_text_of_a_conversation_is_lost(turns: list[list[str]]) -> None:
    roles = ("user", "assistant")
    messages = [
        {"role": roles[index % 2], "content": [{"type": "text", "text": text} for text in texts]}
        for index, texts in enumerate(turns)
    ]
    assert [each["content"] for each in rendered(messages)] == ["\n".join(texts) for texts in turns]
