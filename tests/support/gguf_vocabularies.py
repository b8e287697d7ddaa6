"""The vocabularies of the test tokenizers as a GGUF file's keys, and a small file with one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
from checkpoints import random_model
from gguf import GGMLQuantizationType, TokenType
from gguf_models import SHAPE, add_tensors, finish_file, one_type, start_file
from tokenizers_for_tests import CONTROL, KINDS, MARKS


def add_byte_level(writer: gguf.GGUFWriter, pre: str) -> None:
    """As of Qwen, Llama 3 and GPT-2."""
    spec = json.loads(KINDS["byte-level"]())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    _add_tokens(writer, spec)
    writer.add_token_merges([" ".join(merge) for merge in spec["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def add_sentencepiece(writer: gguf.GGUFWriter) -> None:
    """As of Llama 2; the scores fall with the order of the merges."""
    spec = json.loads(KINDS["legacy-llama"]())
    ranks = {"".join(merge): rank for rank, merge in enumerate(spec["model"]["merges"])}
    writer.add_tokenizer_model("llama")
    tokens = _add_tokens(writer, spec)
    writer.add_token_scores([-float(ranks.get(token, 10_000)) for token in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def _add_tokens(writer: gguf.GGUFWriter, spec: dict[str, Any]) -> list[str]:
    ids = dict(spec["model"]["vocab"]) | {token["content"]: token["id"] for token in spec["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    writer.add_token_list(tokens)
    writer.add_token_types([_kind(token) for token in tokens])
    return tokens


def _kind(token: str) -> TokenType:
    if token == "<unk>":
        return TokenType.UNKNOWN
    if token in CONTROL:
        return TokenType.CONTROL
    if token in MARKS:
        return TokenType.USER_DEFINED
    return TokenType.BYTE if token.startswith("<0x") else TokenType.NORMAL


def write_tiny_file(path: Path) -> bytes:
    """Writes a file of a random Llama with a vocabulary, in Q8_0, and returns its content."""
    model = random_model("llama", **{**SHAPE, "num_hidden_layers": 1, "vocab_size": 512})
    writer = start_file(path, model)
    add_byte_level(writer, "smollm")
    add_tensors(writer, model, one_type(GGMLQuantizationType.Q8_0))
    finish_file(writer)
    return path.read_bytes()
