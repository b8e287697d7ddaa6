"""Which tokens of a prompt belong to which message, in the formats of several families."""

from __future__ import annotations

import re
from array import array
from itertools import pairwise
from typing import Any

import pytest
from arbora.frontend.core.cache_misses import message_places
from arbora.frontend.core.cache_misses.message_places import find_message_places

ENDS = ("<|im_end|>", "<|eot|>", "</s>")
SPECIAL = (*ENDS, "<|im_start|>", "<|head|>", "<|/head|>", "[INST]", "[/INST]", "<|User|>", "<|Assistant|>")
PIECES = re.compile("|".join(map(re.escape, SPECIAL)) + "|.", re.DOTALL)


class Letters:
    """Each letter of ASCII is a token, and each special text another one."""

    special_tokens = frozenset(range(128, 128 + len(SPECIAL)))
    eos_tokens: tuple[int, ...] = (128, 129, 130)

    def token_bytes(self, token: int) -> bytes:
        return chr(token).encode() if token < 128 else SPECIAL[token - 128].encode()


def encode(text: str) -> bytes:
    ids = [128 + SPECIAL.index(each) if each in SPECIAL else ord(each) for each in PIECES.findall(text)]
    return array("i", ids).tobytes()


def parts(text: str, messages: list[dict[str, Any]]) -> list[str]:
    """The texts of the template's beginning, each message, and the template's end."""
    places = find_message_places(encode(text), messages, Letters())
    pieces = PIECES.findall(text)
    borders = [0, *places, len(pieces)]
    return ["".join(pieces[start:end]) for start, end in pairwise(borders)]


def said(*contents: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content} for content in contents]


@pytest.mark.parametrize(
    ("expected", "contents"),
    [
        (
            ["", "<|im_start|>user\nHi<|im_end|>\n", "<|im_start|>model\nYes<|im_end|>\n", "<|im_start|>a"],
            "Hi Yes",
        ),
        (["<|im_start|>system\nBe kind.<|im_end|>\n", "<|im_start|>user\nHi<|im_end|>\n", ""], "Hi"),
        (
            ["", "<|head|>user<|/head|>\n\nHi<|eot|>", "<|head|>a<|/head|>\n\nYes<|eot|>", "<|head|>a"],
            "Hi Yes",
        ),
        (["", "[INST] Hi", "[/INST] Yes</s>", ""], "Hi Yes"),
        (["", "<|User|>Hi", "<|Assistant|>Yes</s>", ""], "Hi Yes"),
        (["", "<|User|>Hi", "<|Assistant|>"], "Hi"),
        (["", "Hi", "\nYes", ""], "Hi Yes"),
    ],
    ids=[
        "chatml",
        "own system prompt",
        "llama 3",
        "mistral",
        "deepseek",
        "only a header",
        "no special tokens",
    ],
)
def test_messages_have_their_headers_and_end_tokens(expected: list[str], contents: str) -> None:
    assert parts("".join(expected), said(*contents.split())) == expected


def test_a_call_and_results_in_one_turn_have_parts_of_their_own() -> None:
    turns = [
        '<|im_start|>assistant\n{"name": "weather"}<|im_end|>\n',
        "<|im_start|>user\n<r>Rain",
        "</r><r>Snow</r><|im_end|>\n",
    ]
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather"}}]}
    assert parts("".join(turns), [call, *said("Rain", "Snow")]) == ["", *turns, ""]


def test_short_texts_that_are_also_in_headers_are_found_in_their_turns() -> None:
    turns = [
        f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in (("user", "use"), ("assistant", "s"))
    ]
    assert parts("".join(turns), said("use", "s")) == ["", *turns, ""]


def test_a_message_that_the_template_leaves_out_has_no_tokens() -> None:
    turns = ["<|im_start|>user\nHi<|im_end|>\n", "<|im_start|>user\nBye<|im_end|>\n"]
    assert parts("".join(turns), said("Hi", "forgotten", "", "Bye")) == ["", turns[0], "", "", turns[1], ""]


def test_a_message_is_found_by_its_beginning_if_the_template_cuts_it() -> None:
    long = "a long text " * 20
    turns = [
        f"<|im_start|>user\n{long[:100]} …<|im_end|>\n".replace("…", "cut"),
        "<|im_start|>a\nB<|im_end|>\n",
    ]
    assert parts("".join(turns), said(long, "B")) == ["", *turns, ""]


def test_messages_are_not_searched_for_once_many_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_places, "MAX_MISSING", 2)
    text = "<|im_start|>user\nHi<|im_end|>\n"
    assert parts(text, said("x", "Hi", "y", "Hi", "Hi"))[2] == text
    assert parts(text, said("x", "y", "Hi"))[3] == ""
