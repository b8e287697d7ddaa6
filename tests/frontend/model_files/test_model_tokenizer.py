"""A WordPiece tokenizer is loaded for models that pool, and refused for those that generate text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from arbora.frontend.model_files.model_tokenizer import load_tokenizer
from arbora.runtime.config import RunnerKind
from arbora.runtime.errors import ConfigError
from tokenizers_for_tests import byte_level_json


def write_word_pieces(directory: Path, architecture: str) -> None:
    backend = tokenizers.Tokenizer.from_str(byte_level_json())
    backend.decoder = tokenizers.decoders.WordPiece()
    (directory / "tokenizer.json").write_text(backend.to_str())
    config = {"architectures": [architecture], "vocab_size": backend.get_vocab_size()}
    (directory / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(("architecture", "runner"), [("BertLMHeadModel", "auto"), ("BertModel", "generate")])
def test_a_model_that_generates_needs_tokens_whose_bytes_are_the_text(
    tmp_path: Path, architecture: str, runner: RunnerKind
) -> None:
    write_word_pieces(tmp_path, architecture)
    with pytest.raises(ConfigError, match="WordPiece is not supported for a model that generates text"):
        load_tokenizer(tmp_path, tmp_path, runner)


@pytest.mark.parametrize(("architecture", "runner"), [("BertModel", "auto"), ("BertLMHeadModel", "pooling")])
def test_a_model_that_pools_may_have_word_pieces(
    tmp_path: Path, architecture: str, runner: RunnerKind
) -> None:
    write_word_pieces(tmp_path, architecture)
    tokenizer = load_tokenizer(tmp_path, tmp_path, runner)
    assert tokenizer.rules.continues_word == "##"
