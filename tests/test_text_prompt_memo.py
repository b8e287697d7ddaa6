"""A conversation's next turn is the very tokens of the last."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers
from arbora.frontend.text.cut_points import CutPoints
from arbora.frontend.text.detokenizer import Detokenizer
from arbora.frontend.text.prompt_memo import PromptMemo
from arbora.frontend.text.tokenizer import Tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers_for_tests import KINDS, byte_level_json, tokenizer_of_kind

each_kind = pytest.mark.parametrize("kind", list(KINDS))
SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>", "<tool_call>", "<think>")
PLAIN = (
    "<|im_",
    "<",
    "</think",
    "|>",
    " ",
    "\n\n",
    "▁",
    "assistant",
    "The quick",
    "fox",
    "é",
    "你好",
    "😀",
    "\u0301",
)
rendered_text = st.lists(st.sampled_from(SPECIAL + PLAIN), max_size=14).map("".join)


def packed(*tokens: int) -> bytes:
    return np.array(tokens, "<i4").tobytes()


def spelled_out(tokenizer: Tokenizer, text: str) -> bytes:
    """The text in tokens of one byte each: never what the tokenizer itself would choose."""
    single = {tokenizer.token_bytes(token): token for token in range(tokenizer.vocab_size)}
    return packed(*(single[bytes([byte])] for byte in text.encode()))


def turn(messages: list[tuple[str, str]]) -> str:
    return "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)


@each_kind
@settings(max_examples=80, deadline=None)
@given(texts=st.lists(rendered_text, min_size=1, max_size=3))
def test_a_memo_that_knows_no_reply_tokenizes_as_the_tokenizer_does(kind: str, texts: list[str]) -> None:
    tokenizer = tokenizer_of_kind(kind)
    memo = PromptMemo(tokenizer)
    for text in texts * 2:
        assert memo.encode(text) == tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("kind", list(KINDS))
def test_all_kinds_of_tokenizers_have_a_memo(kind: str) -> None:
    assert PromptMemo(tokenizer_of_kind(kind)).enabled


@each_kind
@settings(max_examples=80, deadline=None)
@given(reply=st.text(st.sampled_from("The fox é你\n \"'"), min_size=1, max_size=12))
def test_the_next_turn_begins_with_the_ids_that_were_really_produced(kind: str, reply: str) -> None:
    tokenizer = tokenizer_of_kind(kind)
    memo = PromptMemo(tokenizer)
    question = turn([("user", "Hello")])
    prompt_text = question + "<|im_start|>assistant\n"
    prompt = memo.encode(prompt_text)
    produced = spelled_out(tokenizer, reply)
    memo.remember(prompt_text, prompt, reply, produced + packed(4))
    following = question + turn([("assistant", reply), ("user", "And?")])
    assert memo.encode(following).startswith(prompt + produced + packed(4))


@each_kind
def test_a_reply_with_marks_in_it_is_found_again_piece_by_piece(kind: str) -> None:
    tokenizer = tokenizer_of_kind(kind)
    memo = PromptMemo(tokenizer)
    open_mark, close_mark = tokenizer.token_id("<tool_call>"), tokenizer.token_id("</tool_call>")
    assert open_mark is not None and close_mark is not None
    reply = 'Let me look.\n<tool_call>\n{"name": "f"}\n</tool_call>'
    produced = (
        spelled_out(tokenizer, "Let me look.\n")
        + packed(open_mark)
        + spelled_out(tokenizer, '\n{"name": "f"}\n')
        + packed(close_mark)
    )
    prompt_text = "<|im_start|>assistant\n"
    prompt = memo.encode(prompt_text)
    memo.remember(prompt_text, prompt, reply, produced)
    assert memo.encode(prompt_text + reply + "<|im_end|>\n").startswith(prompt + produced)


def test_marks_that_the_model_spelled_out_are_not_remembered() -> None:
    """The tokenizer would cut the text there, so the pieces could never be found again."""
    tokenizer = tokenizer_of_kind("byte-level")
    memo = PromptMemo(tokenizer)
    prompt_text = "<|im_start|>assistant\n"
    prompt = memo.encode(prompt_text)
    used = memo.bytes_used
    memo.remember(prompt_text, prompt, "<think>", spelled_out(tokenizer, "<think>"))
    assert memo.bytes_used == used


def test_after_a_stop_string_only_tokens_whose_text_was_returned_whole_are_remembered() -> None:
    tokenizer = tokenizer_of_kind("byte-level")
    prompt_text = "<|im_start|>assistant\n"
    prompt = tokenizer.encode(prompt_text, False)
    for stop, remembered in (("STOP", True), ("dSTOP", False)):
        memo = PromptMemo(tokenizer)
        produced = spelled_out(tokenizer, "the ") + tokenizer.encode("world", False)
        delta = Detokenizer(tokenizer, [stop]).push(produced + spelled_out(tokenizer, "STOP"), True)
        memo.remember(prompt_text, prompt, delta.text, produced + spelled_out(tokenizer, "STOP"))
        found = memo.encode(prompt_text + delta.text + "<|im_end|>")
        assert found.startswith(prompt + produced) is remembered


def test_a_long_history_costs_only_its_new_text() -> None:
    memo = PromptMemo(tokenizer_of_kind("byte-level"))
    history = [("user", f"question {number}") for number in range(20)]
    memo.encode(turn(history))
    misses = memo.misses
    memo.encode(turn([*history, ("user", "one more")]))
    assert memo.misses == misses + 1
    assert memo.hits >= 20


def test_the_least_recently_used_text_is_forgotten_first() -> None:
    memo = PromptMemo(tokenizer_of_kind("byte-level"), max_bytes=8000)
    for number in range(200):
        memo.encode(turn([("user", "always the same"), ("user", f"new {number}")]))
        assert memo.bytes_used <= 8000
    misses = memo.misses
    memo.encode("<|im_start|>user\nalways the same<|im_end|>")
    assert memo.misses == misses
    memo.encode("<|im_start|>user\nnew 0<|im_end|>")
    assert memo.misses == misses + 1


def with_added(*tokens: AddedToken) -> Tokenizer:
    backend = tokenizers.Tokenizer.from_str(byte_level_json())
    backend.add_tokens(list(tokens))
    return Tokenizer(backend, {}, ())


@settings(max_examples=80, deadline=None)
@given(text=rendered_text, pieces=st.lists(st.sampled_from(["<|end|>", "  ", "x", "<|e", "<|end|>x"])))
def test_tokens_that_eat_spaces_are_no_cuts_but_may_stand_between_them(text: str, pieces: list[str]) -> None:
    eating = AddedToken("<|end|>", rstrip=True, lstrip=True, normalized=False, special=True)
    tokenizer = with_added(eating, AddedToken("<|end|>x", normalized=False, special=True))
    memo = PromptMemo(tokenizer)
    assert memo.enabled
    whole = "".join(pieces) + text + "".join(pieces)
    assert memo.encode(whole) == tokenizer.encode(whole, add_special_tokens=False)


def test_a_tokenizer_that_matches_whole_words_only_has_no_memo() -> None:
    tokenizer = with_added(AddedToken("word", single_word=True, normalized=False))
    memo = PromptMemo(tokenizer)
    assert not memo.enabled
    assert memo.encode("a word<s>word") == tokenizer.encode("a word<s>word", add_special_tokens=False)


def test_of_overlapping_tokens_the_longest_cuts() -> None:
    tokenizer = with_added(*(AddedToken(text, normalized=False) for text in ("<a", "<ab", "<abc>", "c>")))
    pieces = CutPoints(tokenizer).split("x<abcd<abc>c>")
    assert [piece.text for piece in pieces] == ["x", "cd", "", ""]
