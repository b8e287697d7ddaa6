"""Tokenizers made from GGUF files, compared with the tokenizers of the same vocabularies in transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
import tokenizers
from arbora.frontend.model_files.gguf.tokenizer import WORDS, Vocabulary
from arbora.runtime.errors import ConfigError
from arbora.runtime.gguf_file import GgufFile
from gguf_models import finish_file
from gguf_vocabularies import add_byte_level, add_sentencepiece
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers_for_tests import CONTROL, KINDS, MARKS

NFC = tokenizers.normalizers.NFC()
Add = Callable[[gguf.GGUFWriter], None]
TEXTS = st.lists(
    st.one_of(
        st.sampled_from([*CONTROL[1:], *MARKS, " ", "  ", "\n", "'LL", "don't", "1234567", "e\u0301"]),
        st.text(max_size=12),
    ),
    max_size=6,
).map("".join)


def written(path: Path, architecture: str, *adds: Add) -> GgufFile:
    writer = gguf.GGUFWriter(path / "model.gguf", architecture)
    for add in adds:
        add(writer)
    finish_file(writer)
    return GgufFile(path / "model.gguf")


def byte_level(pre: str) -> Add:
    return lambda writer: add_byte_level(writer, pre)


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> tuple[tokenizers.Tokenizer, Path]:
    path = tmp_path_factory.mktemp("sentencepiece")
    return Vocabulary(written(path, "llama", add_sentencepiece)).backend(), path


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> tokenizers.Tokenizer:
    return Vocabulary(written(tmp_path_factory.mktemp("qwen2"), "qwen2", byte_level("qwen2"))).backend()


@pytest.fixture(scope="module")
def transformers_sentencepiece(sentencepiece: tuple[tokenizers.Tokenizer, Path]) -> tokenizers.Tokenizer:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(sentencepiece[1], gguf_file="model.gguf")
    backend: tokenizers.Tokenizer = loaded.backend_tokenizer
    return backend


@given(text=TEXTS)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sentencepiece_text_has_the_ids_of_the_tokenizer_with_the_files_vocabulary(
    sentencepiece: tuple[tokenizers.Tokenizer, Path], text: str
) -> None:
    original = tokenizers.Tokenizer.from_str(KINDS["legacy-llama"]())
    expected = original.encode(text, add_special_tokens=False).ids
    assert sentencepiece[0].encode(text).ids == [1, *expected]
    assert sentencepiece[0].decode(expected) == original.decode(expected)


@given(text=st.text(max_size=40))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sentencepiece_text_has_the_ids_that_transformers_gives(
    sentencepiece: tuple[tokenizers.Tokenizer, Path],
    transformers_sentencepiece: tokenizers.Tokenizer,
    text: str,
) -> None:
    # Llama 2 and llama.cpp put a space before a space and after special tokens, unlike transformers here.
    assume(not text.startswith((" ", "▁")) and not any(token in text for token in [*CONTROL, *MARKS]))
    expected = transformers_sentencepiece.encode(text, add_special_tokens=False).ids
    assert sentencepiece[0].encode(text, add_special_tokens=False).ids == expected


@given(text=TEXTS)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_pre_tokenizer_keeps_the_text(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in WORDS:
        backend = of_name(name, tmp_path_factory)
        ids = backend.encode(text, add_special_tokens=False).ids
        kept = backend.decode(ids, skip_special_tokens=False)
        assert kept == text or (WORDS[name].composed and NFC.normalize_str(kept) == NFC.normalize_str(text))


MADE: dict[str, tokenizers.Tokenizer] = {}


def of_name(name: str, paths: pytest.TempPathFactory) -> tokenizers.Tokenizer:
    if name not in MADE:
        MADE[name] = Vocabulary(written(paths.mktemp("made"), "llama", byte_level(name))).backend()
    return MADE[name]


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("llama-bpe", "I'LL pay 12345\n\n x", ["I", "'LL", " pay", " ", "123", "45", "\n\n", " x"]),
        ("qwen2", "I'LL pay 123\n\n x", ["I", "'LL", " pay", " ", "1", "2", "3", "\n\n", " x"]),
        ("gpt-2", "I'LL it's 123\n\n x", ["I", "'", "LL", " it", "'s", " 123", "\n\n", " x"]),
        ("smollm", "it's  123 x", ["it", "'s", "  ", "1", "2", "3", " x"]),
        ("tekken", "HelloWorld 12", ["Hello", "World", " ", "1", "2"]),
        ("gpt-4o", "HelloWorld it'LL 1234/\n x", ["Hello", "World", " it'LL", " ", "123", "4", "/\n", " x"]),
        ("qwen35", "नमस्ते 123 x", ["नमस्ते", " ", "1", "2", "3", " x"]),
        ("default", "a,b 12345 x", ["a", ",", "b", " ", "123", "45", " x"]),
    ],
)
def test_text_is_split_into_words_by_the_named_pre_tokenizer(
    pre: str, text: str, words: list[str], tmp_path: Path
) -> None:
    backend = Vocabulary(written(tmp_path, "llama", byte_level(pre))).backend()
    split = backend.pre_tokenizer.pre_tokenize_str(text)
    assert [text[begin:end] for _, (begin, end) in split] == words


def test_qwens_text_is_first_composed(qwen2: tokenizers.Tokenizer) -> None:
    assert qwen2.encode("e\u0301").ids == qwen2.encode("\u00e9").ids


def test_control_tokens_are_special_and_marks_are_not(qwen2: tokenizers.Tokenizer) -> None:
    ids = qwen2.encode("<|im_start|>a<think>").ids
    assert ids[0] == CONTROL.index("<|im_start|>")
    assert qwen2.decode(ids) == "a<think>"


def test_the_file_says_which_special_tokens_surround_a_text(tmp_path: Path) -> None:
    def surrounded(writer: gguf.GGUFWriter) -> None:
        writer.add_add_bos_token(False)
        writer.add_add_eos_token(True)

    llama3 = Vocabulary(written(tmp_path, "llama", byte_level("llama-bpe")))
    inner = llama3.backend().encode("a", add_special_tokens=False).ids
    assert llama3.backend().encode("a").ids == [1, *inner]
    other = Vocabulary(written(tmp_path, "llama", byte_level("llama-bpe"), surrounded))
    assert other.backend().encode("a").ids == [*inner, 2]


@pytest.mark.parametrize("text", ["<s>:1", "$A", "$B:1", "a b", ":", "0", ""])
def test_special_tokens_may_have_any_text(tmp_path: Path, text: str) -> None:
    file = written(tmp_path, "llama", byte_level("llama-bpe"))
    file.metadata["tokenizer.ggml.tokens"][1] = text  # type: ignore[index, call-overload]
    assert Vocabulary(file).backend().encode("").ids == [1]


def test_long_tokens_of_sentencepiece_take_little_time(tmp_path: Path) -> None:
    file = written(tmp_path, "llama", add_sentencepiece)
    file.metadata["tokenizer.ggml.tokens"][-1] = "a" * 10_000_000  # type: ignore[index, call-overload]
    assert Vocabulary(file).backend().encode("aa", add_special_tokens=False).tokens


def test_replies_end_with_the_files_tokens_and_with_known_ones(tmp_path: Path) -> None:
    vocabulary = Vocabulary(written(tmp_path, "qwen2", byte_level("qwen2")))
    assert vocabulary.end_ids() == [2, CONTROL.index("<|im_end|>")]


def test_chat_templates_are_kept_with_their_names(tmp_path: Path) -> None:
    def templates(writer: gguf.GGUFWriter) -> None:
        writer.add_chat_template(
            [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
        )

    config = Vocabulary(written(tmp_path, "qwen2", byte_level("qwen2"), templates)).config()
    assert sorted(config["chat_template"], key=lambda each: each["name"]) == [
        {"name": "default", "template": "A"},
        {"name": "tool_use", "template": "B"},
    ]
    assert (config["bos_token"], config["eos_token"]) == ("<s>", "</s>")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pre": "falcon"}, ["pre 'falcon'", "llama-bpe, ", "tokenizer.json"]),
        ({"model": "bert"}, ["model 'bert'", "gpt2"]),
        ({"model": None}, ["model is missing", "Put the file into a directory with the model's config.json"]),
        ({"tokens": []}, ["tokens is empty"]),
        ({"tokens": [1, 2]}, ["tokens should be a list of str"]),
        ({"token_type": [1]}, ["token_type has 1 entries for 486 tokens"]),
        ({"merges": ["q zzz"]}, ["merges don't fit the tokens"]),
        ({"eos_token_id": ["a"] * 999}, ["eos_token_id ['a', 'a', 'a', 'a', 'a', 'a', ...] is"]),
        ({"eos_token_id": 999}, ["eos_token_id 999 is not one of the 486 tokens"]),
    ],
)
def test_a_wrong_key_is_named(tmp_path: Path, change: dict[str, object], words: list[str]) -> None:
    file = written(tmp_path, "qwen2", byte_level("qwen2"))
    for key, value in change.items():
        name = f"tokenizer.ggml.{key}"
        if value is None:
            del file.metadata[name]
        else:
            file.metadata[name] = value  # type: ignore[assignment]
    with pytest.raises(ConfigError) as caught:
        vocabulary = Vocabulary(file)
        vocabulary.end_ids()
        vocabulary.backend()
    assert all(word in str(caught.value) for word in ["model.gguf: tokenizer.ggml.", *words]), caught.value
