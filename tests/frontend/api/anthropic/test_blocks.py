"""The pieces of a reply become content blocks, and cut arguments an object."""

from __future__ import annotations

import json
from typing import Any

import pytest
from arbora.frontend.api.anthropic.blocks import Begun, Blocks, Ended, Event, More, Signed
from arbora.frontend.api.anthropic.responses import TextBlock, ThinkingBlock, ToolUseBlock
from arbora.frontend.api.anthropic.thinking import Shown
from arbora.frontend.core.cut_input import whole_input
from arbora.frontend.core.reply import Piece
from arbora.frontend.core.tools.tool_calls import ToolCallDelta
from hypothesis import given
from hypothesis import strategies as st


def piece(content: str = "", reasoning: str = "", *calls: ToolCallDelta) -> Piece:
    return Piece(0, content, (), None, reasoning, calls)


def call(index: int, fragment: str = "", id: str | None = None) -> ToolCallDelta:
    return ToolCallDelta(index, id, None if id is None else "look", fragment)


def events(*pieces: Piece, shown: Shown = "summarized") -> list[Event]:
    blocks = Blocks(shown)
    found = [event for each in pieces for event in blocks.push(each)]
    return [*found, *blocks.end()]


def kinds(*pieces: Piece, shown: Shown = "summarized") -> list[str]:
    """Each block's type and text, such as `text:Hello`."""
    found: list[str] = []
    for event in events(*pieces, shown=shown):
        match event:
            case Begun(TextBlock()):
                found.append("text:")
            case Begun(ThinkingBlock()):
                found.append("thinking:")
            case Begun(ToolUseBlock()):
                found.append("tool_use:")
            case More(_, text):
                found[-1] += text
    return found


def test_pieces_of_one_kind_are_one_block() -> None:
    assert events(piece("a"), piece("b")) == [
        Begun(TextBlock("")),
        More("text", "a"),
        More("text", "b"),
        Ended(),
    ]


def test_another_kind_begins_another_block() -> None:
    found = kinds(
        piece(reasoning="Hm."),
        piece("I look."),
        piece("", "", call(0, "", "call_a"), call(0, "{}")),
        piece("", "", call(1, '{"x":', "call_b")),
        piece("", "", call(1, "1}")),
        piece("Done."),
    )
    assert found == ["thinking:Hm.", "text:I look.", "tool_use:{}", 'tool_use:{"x":1}', "text:Done."]


def test_every_block_ends_before_the_next_begins() -> None:
    found = events(piece("a", "b"), piece("", "", call(0, "{}", "call_a")), piece("c"))
    edges = [type(event) for event in found if isinstance(event, Begun | Ended)]
    assert edges == [Begun, Ended] * 4


def test_thinking_ends_with_its_signature() -> None:
    *_, signed, ended = events(piece(reasoning="Hm."))
    assert isinstance(signed, Signed) and signed.signature and isinstance(ended, Ended)


def test_omitted_thinking_is_an_empty_block_with_a_signature() -> None:
    begun, signed, ended = events(piece(reasoning="Hm."), shown="omitted")
    assert begun == Begun(ThinkingBlock("", ""))
    assert isinstance(signed, Signed) and isinstance(ended, Ended)


def test_hidden_thinking_is_no_block() -> None:
    assert kinds(piece("a", "Hm."), shown="hidden") == ["text:a"]


def test_a_reply_without_text_has_no_block() -> None:
    assert events(piece()) == []


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        ("", {}),
        ("{", {}),
        ('{"a', {}),
        ('{"a"', {}),
        ('{"a":', {}),
        ('{"a": 12', {}),
        ('{"a": 12,', {"a": 12}),
        ('{"a": 12, "b": "x', {"a": 12}),
        ('{"a": true, "b": [1, 2', {"a": True}),
        ('{"a": true', {"a": True}),
        ('{ "a" : {"b": null} , "c"', {"a": {"b": None}}),
        ('{"a": "x"', {"a": "x"}),
        ('{"a": NaN}', {}),
        ("[1]", {}),
        ("{[1]:2", {}),
        ('{"a": 1.10, "b": "x', {"a": 1.1}),
        (r'{"a": "\ud83d"', {"a": "\ufffd"}),
        (r'{"a": "\ud83d"}', {"a": "\ufffd"}),
        (r'{"a": "\ud83d\ude00\udc00", "b', {"a": "\U0001f600\ufffd"}),
        (r'{"a": "\\ud83d"}', {"a": r"\ud83d"}),
    ],
)
def test_of_cut_arguments_the_complete_members_remain(cut: str, expected: Any) -> None:
    assert json.loads(bytes(whole_input(cut))) == expected


@pytest.mark.parametrize("text", ['{"a": 1e999, "b": "x', '{"a": 1.10, "b": "x'])
def test_numbers_of_cut_arguments_keep_their_digits(text: str) -> None:
    assert bytes(whole_input(text)).decode() == text.partition(",")[0] + "}"


def test_complete_arguments_keep_their_text() -> None:
    text = '{"b": 1.0, "a": 12345678901234567890123}'
    assert bytes(whole_input(text)) == text.encode()


MEMBERS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.integers() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5) | st.lists(st.booleans()),
    max_size=4,
)


@given(MEMBERS, st.data())
def test_wherever_a_limit_cuts_the_members_are_right(members: dict[str, object], data: Any) -> None:
    text = json.dumps(members)
    cut = data.draw(st.integers(0, len(text)))
    found = json.loads(bytes(whole_input(text[:cut])))
    assert list(found.items()) == list(members.items())[: len(found)]
    assert cut < len(text) or found == members
