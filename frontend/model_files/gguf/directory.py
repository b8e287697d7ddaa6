"""The model directory of a GGUF file, cached on disk because making a large tokenizer takes seconds."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

from ....runtime.cache_directory import cache_directory, made_at_once, note_use
from ....runtime.errors import ConfigError
from ....runtime.gguf_file import GgufFile

VERSION = 2
"""The version of the generated files."""
KEPT = 16
"""Directories that are always kept. Each takes about 10 MB."""
SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
"""Matches the file names of a split model."""


def gguf_directory(path: Path) -> Path:
    """A directory with config.json, the tokenizer's files, and links to all files of the model.

    Raises ConfigError for a file that can't be served.
    """
    shards = _shards(path.absolute())
    target = cache_directory("gguf") / _key(shards)
    try:
        if not (target / "config.json").is_file():
            shutil.rmtree(target, ignore_errors=True)
            _make(target, shards)
    except OSError as error:
        raise ConfigError(
            f"{path}: the model directory of the file can't be written to {target.parent} ({error}). Free "
            "some disk space, or set XDG_CACHE_HOME to a directory with more."
        ) from None
    note_use(target, most=KEPT)
    return target


def _make(target: Path, shards: list[Path]) -> None:
    from .config import EMBEDDING, model_config
    from .tokenizer import Vocabulary  # imports the library `tokenizers`, which loads slowly

    file = GgufFile(shards[0])
    config = model_config(file)
    vocabulary = Vocabulary(file)
    if len(vocabulary.tokens) > config["vocab_size"]:
        raise ConfigError(
            f"{file.path}: tokenizer.ggml.tokens has {len(vocabulary.tokens)} tokens, more than the "
            f"{config['vocab_size']} rows of tensor {EMBEDDING}."
        )
    with made_at_once(target, ".part-") as scratch:
        for shard in shards:
            (scratch / shard.name).symlink_to(shard.resolve())
        (scratch / "tokenizer.json").write_text(vocabulary.backend().to_str(), "utf-8")
        _write(scratch / "tokenizer_config.json", vocabulary.config())
        _write(scratch / "generation_config.json", {"eos_token_id": vocabulary.end_ids()})
        _write(scratch / "config.json", config)


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1), "utf-8")


def _shards(path: Path) -> list[Path]:
    """The files of the model in order; several if the model is split."""
    match = SHARD.fullmatch(path.name)
    if match is None:
        return [path]
    name, count = match[1], int(match[3])
    shards = [path.with_name(f"{name}-{index:05}-of-{count:05}.gguf") for index in range(1, count + 1)]
    for shard in shards:
        if not shard.is_file():
            raise ConfigError(
                f"{shard}: this part of the model is missing. Put all {count} into one directory."
            )
    return shards


def _key(shards: list[Path]) -> str:
    found = [
        (shard.name, str(shard.resolve()), (stat := shard.stat()).st_size, stat.st_mtime_ns)
        for shard in shards
    ]
    return hashlib.sha256(repr((VERSION, found)).encode()).hexdigest()[:24]
