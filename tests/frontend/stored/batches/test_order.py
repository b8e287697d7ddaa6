"""Lines whose prompts begin alike stand together."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

import msgspec
import pytest
from arbora.frontend.stored.batches.input_file import CHUNK_BYTES, make_sort_key
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw


def key(**fields: Any) -> bytes:
    return make_sort_key(msgspec.json.decode(json.dumps(fields), type=dict[str, Raw]))


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


@given(order=st.permutations([(document, question) for document in range(4) for question in range(4)]))
def test_questions_about_a_document_are_neighbours(order: list[tuple[int, int]]) -> None:
    documents = [f"{document} says " + "the same for long " * 60 for document in range(4)]
    ordered = sorted(order, key=lambda each: key(messages=user(f"{documents[each[0]]} Question {each[1]}")))
    assert len([name for name, _ in groupby(ordered, key=lambda each: each[0])]) == 4


@pytest.mark.parametrize(
    "prompt", [{"prompt": "a" * 600}, {"prompt": list(range(300))}, {"messages": user("a" * 600)}]
)
def test_a_key_is_much_shorter_than_its_prompt(prompt: Any) -> None:
    assert 0 < len(key(**prompt)) <= len(json.dumps(prompt)) // CHUNK_BYTES * 4 + 8


def test_the_order_of_names_and_the_spaces_do_not_matter() -> None:
    spaced = msgspec.json.decode(b'{"messages": [ {"content" : "a",  "role": "user"} ]}', type=dict[str, Raw])
    assert make_sort_key(spaced) == key(messages=user("a"))


def test_tools_and_the_system_prompt_come_before_the_messages() -> None:
    long = "x" * CHUNK_BYTES
    same = key(system=long, messages=user("a"))[:4]
    assert key(system=long, messages=user("b"))[:4] == same
    assert key(tools=[{"name": "t"}], system=long, messages=user("a"))[:4] != same
