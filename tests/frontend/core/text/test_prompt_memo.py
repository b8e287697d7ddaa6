"""A conversation's next turn begins with exactly the tokens of the last one."""

from __future__ import annotations

import unicodedata
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import pytest
import tokenizers
from arbora.frontend.core.text.control_texts import ControlTexts
from arbora.frontend.core.text.cut_points import CutPoints
from arbora.frontend.core.text.detokenizer import Detokenizer
from arbora.frontend.core.text.prompt_memo import PromptMemo
from arbora.frontend.core.text.tokenizer import Tokenizer
from conversations import ChatTokenizer, chat_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from rendered_texts import packed, rendered_text, spelled_out, turn
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers_for_tests import KINDS, byte_level_json, tokenizer_of_kind

each_kind = pytest.mark.parametrize("kind", list(KINDS))


@each_kind
@settings(max_examples=80, deadline=None)
@given(texts=st.lists(rendered_text, min_size=1, max_size=3))
def test_a_memo_that_knows_no_reply_tokenizes_as_the_tokenizer_does(kind: str, texts: list[str]) -> None:
    tokenizer = tokenizer_of_kind(kind)
    memo = PromptMemo(tokenizer)
    for text in texts * 2:
        assert memo.encode("", text) == tokenizer.encode(text, add_special_tokens=False)


@each_kind
def test_a_text_cut_short_is_tokenized_as_the_tokenizer_does(kind: str) -> None:
    tokenizer = tokenizer_of_kind(kind)
    memo = PromptMemo(tokenizer)
    question = "Hello there, the weather in Paris and Berlin: the quick brown fox jumps over the lazy dog."
    for length in range(len(question), 0, -1):
        text = turn([("user", question[:length]), ("user", "And?")])
        assert memo.encode("", text) == tokenizer.encode(text, add_special_tokens=False)


@each_kind
@settings(max_examples=30, deadline=None)
@given(reply=st.text(st.sampled_from("The fox é你\n \"'"), min_size=1, max_size=12))
def test_without_replies_a_texts_ids_do_not_depend_on_earlier_samples(kind: str, reply: str) -> None:
    tokenizer = tokenizer_of_kind(kind)
    memo = PromptMemo(tokenizer, keeps_replies=False)
    prompt_text = turn([("user", "Hello")]) + "<|im_start|>assistant\n"
    prompt = memo.encode("", prompt_text)
    memo.remember("", prompt_text, prompt, reply, spelled_out(tokenizer, reply))
    text = prompt_text + reply + "<|im_end|>\n" + turn([("user", "And?")])
    assert memo.encode("", text) == tokenizer.encode(text, add_special_tokens=False)


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
    prompt = memo.encode("", prompt_text)
    produced = spelled_out(tokenizer, reply)
    memo.remember("", prompt_text, prompt, reply, produced + packed(4))
    following = question + turn([("assistant", reply), ("user", "And?")])
    assert memo.encode("", following).startswith(prompt + produced + packed(4))


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
    prompt = memo.encode("", prompt_text)
    memo.remember("", prompt_text, prompt, reply, produced)
    assert memo.encode("", prompt_text + reply + "<|im_end|>\n").startswith(prompt + produced)


@each_kind
@pytest.mark.parametrize("reply", ["<think>", "so <|im_end|> then", "<|im_end|>", "<think>a</think><s>"])
def test_special_tokens_that_the_model_spelled_out_stay_as_it_spelled_them(kind: str, reply: str) -> None:
    tokenizer = tokenizer_of_kind(kind)
    memo = PromptMemo(tokenizer)
    prompt_text = turn([("user", "Hello")]) + "<|im_start|>assistant\n"
    prompt = memo.encode("", prompt_text)
    produced = spelled_out(tokenizer, reply)
    memo.remember("", prompt_text, prompt, reply, produced)
    sent_back = ControlTexts(map(tokenizer.token_text, tokenizer.special_tokens)).guard(reply)
    following = memo.encode("", prompt_text + sent_back + "<|im_end|>\n" + turn([("user", "And?")]))
    assert following.startswith(prompt + produced + packed(4))


def test_after_a_stop_string_only_tokens_whose_text_was_returned_whole_are_remembered() -> None:
    tokenizer = tokenizer_of_kind("byte-level")
    prompt_text = "<|im_start|>assistant\n"
    prompt = tokenizer.encode(prompt_text, False)
    for stop, remembered in (("STOP", True), ("dSTOP", False)):
        memo = PromptMemo(tokenizer)
        produced = spelled_out(tokenizer, "the ") + tokenizer.encode("world", False)
        delta = Detokenizer(tokenizer, [stop]).push(produced + spelled_out(tokenizer, "STOP"), True)
        memo.remember("", prompt_text, prompt, delta.text, produced + spelled_out(tokenizer, "STOP"))
        found = memo.encode("", prompt_text + delta.text + "<|im_end|>")
        assert found.startswith(prompt + produced) is remembered


def with_added(*tokens: AddedToken) -> Tokenizer:
    backend = tokenizers.Tokenizer.from_str(byte_level_json())
    backend.add_tokens(list(tokens))
    return Tokenizer(backend, {}, ())


@settings(max_examples=80, deadline=None)
@given(text=rendered_text, pieces=st.lists(st.sampled_from(["<|end|>", "  ", "x", "<|e", "<|end|>x"])))
def test_tokens_that_absorb_spaces_are_no_cuts_but_may_be_between_them(text: str, pieces: list[str]) -> None:
    eating = AddedToken("<|end|>", rstrip=True, lstrip=True, normalized=False, special=True)
    tokenizer = with_added(eating, AddedToken("<|end|>x", normalized=False, special=True))
    memo = PromptMemo(tokenizer)
    assert memo.enabled
    whole = "".join(pieces) + text + "".join(pieces)
    assert memo.encode("", whole) == tokenizer.encode(whole, add_special_tokens=False)


def test_a_tokenizer_that_matches_whole_words_only_has_no_memo() -> None:
    tokenizer = with_added(AddedToken("word", single_word=True, normalized=False))
    memo = PromptMemo(tokenizer)
    assert not memo.enabled
    prompt = tokenizer.encode("a word<s>word", add_special_tokens=False)
    assert memo.encode("", "a word<s>word") == prompt
    memo.remember("", "a word<s>word", prompt, " fox", spelled_out(tokenizer, " fox"))
    assert memo.bytes_used == 0


@each_kind
def test_ids_that_the_memo_did_not_give_are_not_remembered(kind: str) -> None:
    """The client may have had special tokens added that the text doesn't show."""
    tokenizer = tokenizer_of_kind(kind)
    text = turn([("user", "Hello")])
    for known in ("", text):
        memo = PromptMemo(tokenizer)
        prompt = memo.encode("", known)
        memo.remember("", text, packed(1) + prompt, "fox", spelled_out(tokenizer, "fox"))
        memo.remember("", text, prompt + packed(2), "fox", spelled_out(tokenizer, "fox"))
        whole = text + "fox<|im_end|>"
        assert memo.encode("", whole) == tokenizer.encode(whole, add_special_tokens=False)


def test_text_that_normalizes_to_a_special_token_is_not_taken_for_one() -> None:
    pieces = [("<unk>", 0.0), ("<s>", -0.1), ("a", -2.0), ("b", -2.0)]
    backend = tokenizers.Tokenizer(models.Unigram(pieces, 0))
    backend.normalizer = normalizers.NFKC()
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    backend.add_special_tokens([AddedToken("<s>", normalized=False)])
    tokenizer = Tokenizer(backend, {}, ())
    memo = PromptMemo(tokenizer)
    for text in ("<s>ab＜s＞<s>b", "<s>ab＜s＞<s>b<s>", "<s>ab＜s＞<s>ba"):
        assert memo.encode("", text) == tokenizer.encode(text, add_special_tokens=False)
    assert memo.tokens_remembered == 2 * 4


OVERLAPPING = ("<a", "<ab", "<abc>", "c>d", "e<a", "--", "-=-", "]f[")


@settings(max_examples=120, deadline=None)
@given(
    tokens=st.sets(st.sampled_from(OVERLAPPING), min_size=1),
    pieces=st.lists(st.sampled_from([*OVERLAPPING, "<", "a", "b", "c>", "-", "e", " "]), max_size=12),
)
def test_texts_are_cut_only_where_no_token_lies_across(tokens: set[str], pieces: list[str]) -> None:
    tokenizer = with_added(*(AddedToken(text, normalized=False) for text in sorted(tokens)))
    cuts, text = CutPoints(tokenizer), "".join(pieces).encode()
    borders = [0, *filter(None, cuts.find_all(text)), len(text)]
    parts = [text[start:end].decode() for start, end in pairwise(borders)]
    ids = [tokenizer.encode(part, add_special_tokens=False) for part in parts]
    assert b"".join(ids) == tokenizer.encode(text.decode(), add_special_tokens=False)
    assert all(cuts.is_cut(text, border) for border in borders[1:])


def test_a_token_that_another_can_absorb_is_no_cut() -> None:
    tokenizer = with_added(*(AddedToken(text, normalized=False) for text in OVERLAPPING))
    cuts = [text for text in OVERLAPPING if CutPoints(tokenizer).is_cut(text.encode() + b" ", 0)]
    assert cuts == ["e<a", "]f["]


@each_kind
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_ids_always_decode_to_the_text(kind: str, data: st.DataObject) -> None:
    """With any earlier conversation remembered, and whether or not the text is well cut."""
    tokenizer = tokenizer_of_kind(kind)
    memo = PromptMemo(tokenizer)
    texts = [""]
    for _ in range(6):
        text = data.draw(st.sampled_from(texts)) + data.draw(rendered_text)
        prompt = memo.encode("", text)
        assert comparable(kind, tokenizer.decode(prompt, False)) == comparable(kind, text)
        reply = data.draw(st.lists(st.integers(5, tokenizer.vocab_size - 1), max_size=6))
        told = tokenizer.decode(packed(*reply), continues_text=True)
        memo.remember("", text, prompt, told, packed(*reply))
        texts += [text, text + told, text + told[:-1]]


def comparable(kind: str, text: str) -> str:
    """SentencePiece puts spaces in front of words and writes them as `▁`."""
    text = unicodedata.normalize("NFC", text)
    return text if kind == "byte-level" else text.replace("▁", "").replace(" ", "")


def test_the_least_recently_used_texts_are_forgotten_first() -> None:
    tokenizer = chat_tokenizer("byte-level")
    memo = PromptMemo(tokenizer, max_bytes=20_000)
    same = [("user", "always the same"), ("user", "asked again and again " * 10)]
    memo.encode("", turn(same))
    for number in range(200):
        memo.encode("", turn([("user", "always the same"), ("user", f"new {number} " * 20)]))
        assert memo.bytes_used <= 20_000
        assert characters(tokenizer, memo, same) == 0
    assert characters(tokenizer, memo, [("user", "always the same"), ("user", "new 199 " * 20)]) == 0
    assert characters(tokenizer, memo, [("user", "always the same"), ("user", "new 0 " * 20)]) > 100


def test_a_text_too_large_for_the_memo_evicts_nothing() -> None:
    tokenizer = chat_tokenizer("byte-level")
    memo = PromptMemo(tokenizer, max_bytes=20_000)
    memo.encode("", turn([("user", "Hello")]) + "<s>")
    used = memo.bytes_used
    memo.encode("", turn([("user", "much " * 10_000)]) + "<s>")
    assert memo.bytes_used == used


def characters(tokenizer: ChatTokenizer, memo: PromptMemo, messages: list[tuple[str, str]]) -> int:
    """How many characters of the text, up to its last special token, are tokenized."""
    tokenizer.characters = 0
    memo.encode("", turn(messages).removesuffix("\n"))
    return max(0, tokenizer.characters - len("<|im_end|>"))


def test_a_memo_may_be_used_from_several_threads() -> None:
    tokenizer = tokenizer_of_kind("byte-level")
    memo = PromptMemo(tokenizer, max_bytes=60_000)
    texts = [turn([("user", f"Question {n % 7}"), ("assistant", f"answer {n % 3}")]) * 9 for n in range(150)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(partial(memo.encode, ""), texts))
    assert found == [tokenizer.encode(text, add_special_tokens=False) for text in texts]
