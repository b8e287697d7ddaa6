"""The vocabulary file: what each token id is in bytes, written once by the tokenizer process.

It is written from the tokenizer at start-up and read by the scheduler, the grammar workers and the
model process, none of which has a tokenizer. Ids past the tokenizer's own (a padded embedding) have
no bytes and count as special.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

FILE_NAME = "vocabulary.safetensors"
TOKENIZER_NAME = "tokenizer.json"  # beside it, written before it; of use only where text is cut into tokens


class Vocabulary(NamedTuple):
    """Token i is `data[offsets[i]:offsets[i + 1]]`. Special tokens never match as text."""

    offsets: NDArray[np.int32]  # [size + 1]
    data: NDArray[np.uint8]
    special: NDArray[np.bool_]  # [size]
    eos: tuple[int, ...]  # end-of-sequence ids, the tokenizer's own first
    hash: str

    @property
    def size(self) -> int:
        return len(self.special)

    def token_bytes(self, token: int) -> bytes:
        return self.data[self.offsets[token] : self.offsets[token + 1]].tobytes()


def build_vocabulary(tokens: list[bytes], special: list[bool], eos: tuple[int, ...]) -> Vocabulary:
    """`tokens[i]` and `special[i]` for every id up to the model's vocabulary size."""
    offsets = np.zeros(len(tokens) + 1, np.int32)
    np.cumsum([len(token) for token in tokens], out=offsets[1:])
    data = np.frombuffer(b"".join(tokens), np.uint8)
    flags = np.array(special, np.bool_)
    digest = hashlib.sha256()
    for part in (offsets.tobytes(), data.tobytes(), flags.tobytes(), repr(eos).encode()):
        digest.update(part)
    return Vocabulary(offsets, data, flags, eos, digest.hexdigest())


def save_vocabulary(vocabulary: Vocabulary, directory: Path) -> None:
    """Readers see the whole file or none."""
    unfinished = directory / (FILE_NAME + ".part")
    save_file(
        {"offsets": vocabulary.offsets, "data": vocabulary.data, "special": vocabulary.special},
        unfinished,
        metadata={"eos": ",".join(map(str, vocabulary.eos)), "hash": vocabulary.hash},
    )
    unfinished.rename(directory / FILE_NAME)


def load_vocabulary(directory: Path) -> Vocabulary:
    with safe_open(directory / FILE_NAME, framework="numpy") as file:
        metadata = file.metadata()
        eos = tuple(int(token) for token in metadata["eos"].split(",") if token)
        return Vocabulary(
            file.get_tensor("offsets"),
            file.get_tensor("data"),
            file.get_tensor("special"),
            eos,
            metadata["hash"],
        )
