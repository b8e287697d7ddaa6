"""Tokens, text and bytes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from arbora.frontend.core.text.tokenizer import CONTROL_MARK, Tokenizer
from arbora.runtime.errors import ConfigError
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers_for_tests import KINDS, byte_level_json, tokenizer_of_kind, write_model_folder

each_kind = pytest.mark.parametrize("kind", list(KINDS))
plain_text = st.text(st.sampled_from("The fox é 你😀\n\t<>|\"'{}[]▁1"), max_size=40)


def ids(tokens: bytes) -> list[int]:
    return list(np.frombuffer(tokens, "<i4"))


def packed(*tokens: int) -> bytes:
    return np.array(tokens, "<i4").tobytes()


@each_kind
@settings(max_examples=80, deadline=None)
@given(text=plain_text)
def test_encoding_is_that_of_the_library(kind: str, text: str) -> None:
    backend = tokenizers.Tokenizer.from_str(KINDS[kind]())
    assert (
        ids(tokenizer_of_kind(kind).encode(text, False)) == backend.encode(text, add_special_tokens=False).ids
    )


@each_kind
@settings(max_examples=80, deadline=None)
@given(text=plain_text)
def test_encoded_text_decodes_as_the_library_decodes_it(kind: str, text: str) -> None:
    tokenizer = tokenizer_of_kind(kind)
    backend = tokenizers.Tokenizer.from_str(KINDS[kind]())
    tokens = tokenizer.encode(text, False)
    assert tokenizer.decode(tokens) == backend.decode(ids(tokens))


@each_kind
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_any_tokens_whose_bytes_are_text_decode_as_the_library_decodes_them(
    kind: str, data: st.DataObject
) -> None:
    tokenizer = tokenizer_of_kind(kind)
    backend = tokenizers.Tokenizer.from_str(KINDS[kind]())
    tokens = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=12))
    skip = data.draw(st.booleans())
    text = tokenizer.decode(packed(*tokens), skip)
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert text == backend.decode(tokens, skip_special_tokens=skip)


@settings(max_examples=80, deadline=None)
@given(tokens=st.lists(st.integers(5, 400), max_size=12))
def test_byte_level_decoding_replaces_invalid_bytes_as_the_library_does(tokens: list[int]) -> None:
    backend = tokenizers.Tokenizer.from_str(byte_level_json())
    assert tokenizer_of_kind("byte-level").decode(packed(*tokens)) == backend.decode(tokens)


@each_kind
@settings(max_examples=80, deadline=None)
@given(text=plain_text)
def test_the_bytes_of_a_texts_tokens_are_its_bytes(kind: str, text: str) -> None:
    tokenizer = tokenizer_of_kind(kind)
    joined = b"".join(map(tokenizer.token_bytes, ids(tokenizer.encode(text, False))))
    assert joined.decode() in (text.replace("▁", " "), " " + text.replace("▁", " "), text)


def test_a_continuation_keeps_the_space_that_separates_it_from_its_prompt() -> None:
    tokenizer = tokenizer_of_kind("metaspace")
    tokens = tokenizer.encode("fox", False)
    assert tokenizer.decode(tokens) == "fox"
    assert tokenizer.decode(tokens, continues_text=True) == " fox"


def test_part_of_a_character_is_shown_as_its_bytes() -> None:
    tokenizer = tokenizer_of_kind("metaspace")
    euro = ids(tokenizer.encode("€", False))[-3:]
    assert [tokenizer.token_text(token) for token in euro] == [r"bytes:\xe2", r"bytes:\x82", r"bytes:\xac"]
    assert tokenizer.token_text(tokenizer.token_id("<|im_end|>") or 0) == "<|im_end|>"


def test_the_end_of_sequence_tokens_are_gathered_from_all_files_the_tokenizers_own_first(
    tmp_path: Path,
) -> None:
    folder = write_model_folder(
        tmp_path,
        generation_config={"eos_token_id": [2, 4]},
        config={"eos_token": {"content": "<|im_end|>"}},
    )
    (folder / "config.json").write_text('{"eos_token_id": 1}')
    assert Tokenizer.load(folder).eos_tokens == (4, 2, 1)


@each_kind
def test_the_vocabulary_has_every_token_and_pads_to_the_models_size(kind: str) -> None:
    tokenizer = tokenizer_of_kind(kind)
    vocabulary = tokenizer.vocabulary(tokenizer.vocab_size + 3)
    assert vocabulary.size == tokenizer.vocab_size + 3
    assert vocabulary.special[-3:].all() and vocabulary.token_bytes(vocabulary.size - 1) == b""
    assert vocabulary.eos == (4,)
    for token in range(tokenizer.vocab_size):
        assert vocabulary.token_bytes(token) == tokenizer.token_bytes(token)


def test_marks_of_tool_calls_match_as_text_and_control_tokens_do_not() -> None:
    tokenizer = tokenizer_of_kind("byte-level")
    vocabulary = tokenizer.vocabulary(tokenizer.vocab_size)
    mark, control = tokenizer.token_id("<tool_call>"), tokenizer.token_id("<|im_end|>")
    assert mark is not None and control is not None
    assert not vocabulary.special[mark] and vocabulary.token_bytes(mark) == b"<tool_call>"
    assert vocabulary.special[control]


def test_every_byte_has_a_token_in_the_vocabulary() -> None:
    for kind in KINDS:
        vocabulary = tokenizer_of_kind(kind).vocabulary(tokenizer_of_kind(kind).vocab_size)
        single = {vocabulary.token_bytes(token) for token in range(vocabulary.size)}
        assert {bytes([byte]) for byte in range(256)} <= single


def test_added_tokens_listed_in_the_tokenizers_config_only_are_added(tmp_path: Path) -> None:
    size = tokenizer_of_kind("byte-level").vocab_size
    extra = {"content": "<|extra|>", "special": True, "normalized": False, "__type": "AddedToken"}
    folder = write_model_folder(tmp_path, config={"added_tokens_decoder": {str(size): extra}})
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.token_id("<|extra|>") == size
    assert size in tokenizer.special_tokens


def test_a_decoder_whose_tokens_have_no_bytes_of_their_own_is_refused(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer.from_str(byte_level_json())
    backend.decoder = tokenizers.decoders.CTC()
    (tmp_path / "tokenizer.json").write_text(backend.to_str())
    with pytest.raises(ConfigError, match="step CTC is not supported"):
        Tokenizer.load(tmp_path)


def test_a_broken_tokenizer_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_a_tokenizer_in_an_older_format_is_converted(tmp_path: Path) -> None:
    """GPT-2's: a vocabulary and merges in two files."""
    model = json.loads(byte_level_json())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [" ".join(pair) for pair in model["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.decode(tokenizer.encode("The quick fox, 你好")) == "The quick fox, 你好"


def test_a_folder_without_any_tokenizer_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_tokens_that_only_the_tokenizers_config_calls_special_are_special(tmp_path: Path) -> None:
    folder = write_model_folder(tmp_path, config={"additional_special_tokens": ["<think>"]})
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.token_id("<think>") in tokenizer.special_tokens
    assert tokenizer.decode(tokenizer.encode("a<think>b", False)) == "ab"


def test_a_marked_text_has_its_special_tokens_at_the_ends() -> None:
    backend = tokenizers.Tokenizer.from_str(byte_level_json())
    backend.add_special_tokens([tokenizers.AddedToken(each, normalized=True) for each in ("<s>", "</s>")])
    ends = [(each, backend.token_to_id(each)) for each in ("<s>", "</s>")]
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=ends
    )
    tokenizer = Tokenizer(backend, {}, ())
    inside = ids(tokenizer.encode(f"The{CONTROL_MARK} fox", False))
    assert ids(tokenizer.encode(f"The{CONTROL_MARK} fox")) == [ends[0][1], *inside, ends[1][1]]
    marked = ids(tokenizer.encode(f"<{CONTROL_MARK}s>"))
    assert (marked[0], marked[-1]) == (ends[0][1], ends[1][1]) and ends[0][1] not in marked[1:]
