"""Loads the model's tokenizer, and writes the vocabulary file for the other processes."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ...runtime.checkpoint_json import CONFIG_FILE, read_config
from ...runtime.config import RunnerKind
from ...runtime.errors import ConfigError
from ...runtime.model.pooling_config import read_pooling
from ...runtime.vocabulary import TOKENIZER_NAME, save_vocabulary
from ..core.text.tokenizer import Tokenizer


class _TextSizes(msgspec.Struct):
    vocab_size: int | None = None


class _ModelSizes(msgspec.Struct):
    vocab_size: int | None = None
    text_config: _TextSizes | None = None


def load_tokenizer(model: Path, directory: Path, runner: RunnerKind = "auto") -> Tokenizer:
    """Loads the tokenizer. Writes tokenizer and vocabulary files into `directory`. Raises `ConfigError`."""
    tokenizer = Tokenizer.load(model)
    if tokenizer.rules.continues_word and read_pooling(model, runner) is None:
        # WordPiece drops spaces before punctuation, so the text differs from the bytes of its tokens.
        raise ConfigError(
            f"{model}: the tokenizer's decoder WordPiece is not supported for a model that generates text. "
            "For embeddings use --runner pooling."
        )
    tokenizer.save(directory / TOKENIZER_NAME)
    save_vocabulary(tokenizer.vocabulary(model_vocab_size(model)), directory)
    return tokenizer


def model_vocab_size(model: Path) -> int:
    """The number of the embedding's rows, which may exceed the tokenizer's ids. Raises `ConfigError`."""
    sizes = read_config(model, _ModelSizes)
    size = sizes.vocab_size or (sizes.text_config.vocab_size if sizes.text_config else None)
    if size is None:
        raise ConfigError(
            f"{model / CONFIG_FILE} has no vocab_size, so how many tokens the model knows is unclear."
        )
    return size
