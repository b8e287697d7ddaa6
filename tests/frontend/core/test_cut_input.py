"""Cut arguments of a call become an object of their complete members."""

from __future__ import annotations

import json
from typing import Any

import pytest
from arbora.frontend.core.cut_input import whole_input
from hypothesis import given
from hypothesis import strategies as st


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
