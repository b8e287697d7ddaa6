"""Long texts are tokenized in pieces that have the tokens of the whole, and given up with too many tokens."""

from __future__ import annotations

import functools
import json
from functools import partial

import numpy as np
import pytest
import tokenizers
from arbora.frontend.core.text import long_texts
from arbora.frontend.core.text.long_texts import LONG_TEXT, LongTexts, TextPieces, TooLongError
from arbora.frontend.core.text.prompt_memo import PromptMemo
from arbora.frontend.core.text.tokenizer import CONTROL_MARK, Tokenizer
from arbora.frontend.core.work.thread_pool import run_now
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, pre_tokenizers, processors
from tokenizers_for_tests import KINDS, byte_level_json, tokenizer_of_kind

PATTERNS = {
    "cl100k": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "o200k": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'ll)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'ll)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
KIND_NAMES = [*KINDS, *PATTERNS, "eats-spaces", "joins-words"]
each_kind = pytest.mark.parametrize("kind", KIND_NAMES)
PARTS = (
    *(
        "The",
        "fox",
        " ",
        " ",
        " ",
        "  ",
        "\n",
        "jumps",
        "é",
        "e\u0301",
        "＜",
        "한",
        "\u1112\u1161\u11ab",
        "你好",
        "😀",
    ),
    *(
        "▁",
        "▁▁",
        "12",
        "345",
        "'ll",
        "'s",
        "a",
        "aaaa",
        "<s>",
        "<|im_end|>",
        "<think>",
        ".",
        "=====",
        CONTROL_MARK,
    ),
    *("Å", "\u212b", "\u0958", "\t", "x y", "z", "WORD", "<|eat|>"),
)
awkward = st.lists(st.sampled_from(PARTS), max_size=40).map("".join)


@functools.cache
def tokenizer(kind: str) -> Tokenizer:
    if kind in KINDS:
        return tokenizer_of_kind(kind)
    backend = tokenizers.Tokenizer.from_str(byte_level_json())
    if kind in PATTERNS:
        split = pre_tokenizers.Split(tokenizers.Regex(PATTERNS[kind]), "isolated")
        bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_of])
    elif kind == "eats-spaces":
        backend.add_special_tokens([AddedToken("<|eat|>", rstrip=True, lstrip=True, normalized=False)])
    else:
        spec = json.loads(backend.to_str())
        vocab = spec["model"]["vocab"]
        vocab["foxĠ"] = len(vocab) + 100
        spec["model"]["merges"].insert(0, ["x", "Ġ"])
        vocab["xĠ"] = len(vocab) + 100
        spec["pre_tokenizer"] = json.loads(
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).__getstate__()
        )
        backend = tokenizers.Tokenizer.from_str(json.dumps(spec))
    return Tokenizer(backend, {}, ())


@each_kind
@settings(max_examples=100, deadline=None)
@given(texts=st.lists(awkward, min_size=1, max_size=8))
def test_the_pieces_of_a_text_have_the_tokens_of_the_whole(kind: str, texts: list[str]) -> None:
    text = " ".join(texts)
    pieces = list(small_pieces(kind, text))
    ids = b"".join(tokenizer(kind).encode(piece, add_special_tokens=False) for piece in pieces)
    assert ids == tokenizer(kind).encode(text, add_special_tokens=False)


@functools.cache
def pieces_of(kind: str) -> TextPieces:
    return TextPieces(tokenizer(kind))


def small_pieces(kind: str, text: str) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_texts, "PIECE_CHARACTERS", 3)
        patch.setattr(long_texts, "_WINDOW", 5)
        return list(pieces_of(kind).cut(text))


def test_all_kinds_but_the_one_whose_tokens_join_words_have_pieces() -> None:
    assert [kind for kind in KIND_NAMES if len(small_pieces(kind, "one two three four")) == 1] == [
        "joins-words"
    ]


@each_kind
def test_a_long_text_is_tokenized_in_steps_with_special_tokens_around_it(kind: str) -> None:
    backend = tokenizers.Tokenizer.from_str(tokenizer(kind)._backend.to_str())
    around = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    backend.post_processor = around
    own = Tokenizer(backend, {}, ())
    text = "The quick brown fox jumps over the lazy dog. " * 4000
    for special in (True, False):
        steps = LongTexts(own).encode_in_steps(text, special)
        assert run_now(steps) == own.encode(text, special)


@pytest.mark.parametrize("text", ["xylophones, fox ", "xylophones, ", "a", "你好"])
def test_a_long_text_is_given_up_as_soon_as_it_has_too_many_tokens(text: str) -> None:
    """With and without seams, where it can be cut."""
    counting = Counting(tokenizers.Tokenizer.from_str(byte_level_json()), {}, ())
    texts = LongTexts(counting)
    memo = PromptMemo(counting)
    for steps in (texts.encode_in_steps, partial(memo.encode_in_steps, "")):
        counting.characters = 0
        with pytest.raises(TooLongError) as raised:
            run_now(steps(text * (2_000_000 // len(text)), max_tokens=50_000))
        assert raised.value.tokens > 50_000
        assert counting.characters < 700_000


@each_kind
@pytest.mark.parametrize("text", ["<s>,,12 ", "a", "한", "The fox "])
def test_a_text_that_fits_is_never_given_up(kind: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if its tokens are long, so that they are counted first, and if it is cut inside of them."""
    monkeypatch.setattr(long_texts, "PIECE_CHARACTERS", 1000)
    monkeypatch.setattr(long_texts, "CHARACTERS_PER_TOKEN", 0)
    text *= LONG_TEXT // len(text) + 1
    whole = tokenizer(kind).encode(text, add_special_tokens=False)
    assert run_now(LongTexts(tokenizer(kind)).encode_in_steps(text, max_tokens=len(whole) // 4)) == whole


class Counting(Tokenizer):
    characters = 0

    def encode(self, text: str, add_special_tokens: bool = True) -> bytes:
        self.characters += len(text)
        return super().encode(text, add_special_tokens)


def test_a_prompt_that_the_memo_could_not_keep_is_not_tokenized_again() -> None:
    """It may be long, and a reply is remembered on the event loop."""
    counting = Counting(tokenizers.Tokenizer.from_str(byte_level_json()), {}, ())
    memo = PromptMemo(counting, max_bytes=10_000)
    text = "<|im_start|>" + "The quick fox " * (LONG_TEXT // 4) + "<|im_end|>"
    prompt = memo.encode("", text)
    counting.characters = 0
    memo.remember("", text, prompt, "fox", counting.encode("fox", False))
    assert counting.characters == len("fox")


def test_ids_of_a_long_text_are_little_endian_int32() -> None:
    text = "The quick brown fox " * 8000
    ids = np.frombuffer(run_now(LongTexts(tokenizer("byte-level")).encode_in_steps(text)), "<i4")
    assert tokenizer("byte-level").decode(ids.tobytes()) == text
