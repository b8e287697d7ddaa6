"""Small tokenizers of the kinds that language models use, trained in a moment, and model folders of them."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import tokenizers
from arbora.frontend.core.text.tokenizer import Tokenizer
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

TEXT = """The quick brown fox jumps over the lazy dog. A tool call has a name and arguments.
user assistant system tool name arguments parameters function result weather in Paris and Berlin
{"name": "weather", "arguments": {"city": "Paris", "days": 3}} [1, 2, 3]
def f(x):
    return x + 1

Ça coûte dix euros, près de l'église. Привет, мир. 你好，世界。 😀
I'll look that up for you. Thinking about it, the answer is 42. Hello there, how are you?
"""
CONTROL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
MARKS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]


@functools.cache
def byte_level_json() -> str:
    """As of Qwen, Llama 3 and GPT-2: bytes in a printable alphabet."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    words = Regex(r"'s|'ll| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=560, special_tokens=CONTROL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXT.splitlines(keepends=True), trainer)
    return _with_marks(backend)


@functools.cache
def metaspace_json() -> str:
    """As of SentencePiece models: a metaspace before the first word only, characters or bytes."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = _sentencepiece_decoder(leading_spaces=1)
    _train_with_byte_fallback(backend)
    return _with_marks(_with_byte_tokens(backend))


@functools.cache
def legacy_llama_json() -> str:
    """As of Llama 2: a normalizer puts a metaspace before every piece between special tokens."""
    backend = tokenizers.Tokenizer.from_str(metaspace_json())
    backend.pre_tokenizer = None
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return backend.to_str()


@functools.cache
def gemma_json() -> str:
    """As of Gemma: no metaspace is added."""
    backend = tokenizers.Tokenizer.from_str(metaspace_json())
    backend.pre_tokenizer = None
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = _sentencepiece_decoder(leading_spaces=0)
    return backend.to_str()


KINDS = {
    "byte-level": byte_level_json,
    "metaspace": metaspace_json,
    "legacy-llama": legacy_llama_json,
    "gemma": gemma_json,
}


@functools.cache
def tokenizer_of_kind(kind: str) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(KINDS[kind]()), {"eos_token": "<|im_end|>"}, (4,))


def write_model_folder(
    folder: Path, kind: str = "byte-level", *, config: dict[str, Any] | None = None, **files: object
) -> Path:
    """A folder with a tokenizer; `files` are further ones by their name without `.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(KINDS[kind]())
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        **(config or {}),
    }
    for name, content in {"tokenizer_config": tokenizer_config, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def _sentencepiece_decoder(leading_spaces: int) -> decoders.Sequence:
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + [decoders.Strip(" ", leading_spaces, 0)] * (leading_spaces > 0))


def _train_with_byte_fallback(backend: tokenizers.Tokenizer) -> None:
    trainer = trainers.BpeTrainer(vocab_size=260, special_tokens=CONTROL, show_progress=False)
    latin = [line for line in TEXT.splitlines() if line.isascii()]
    backend.train_from_iterator([word for line in latin for word in line.split()], trainer)


def _with_byte_tokens(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    spec = json.loads(backend.to_str())
    vocab = spec["model"]["vocab"]
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    spec["model"]["byte_fallback"] = True
    return tokenizers.Tokenizer.from_str(json.dumps(spec))


def _with_marks(backend: tokenizers.Tokenizer) -> str:
    backend.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    return backend.to_str()
