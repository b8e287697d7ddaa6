"""The vocabulary file: the bytes of each token id. The tokenizer process writes it once.

The scheduler, the grammar workers and the model process read it, because they have no tokenizer. Ids beyond
the tokenizer's own (a padded embedding) have no bytes and count as special.
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
FIRST_UNUSED_BYTE = 0xF5
"""bytes from this value on never occur in UTF-8 text"""
_DIGITS = 7  # octal digits of the id in the bytes of a special token
_MARK = 0xFE
TOKENIZER_NAME = "tokenizer.json"  # file in the same directory, written earlier; it splits text into tokens


class Vocabulary(NamedTuple):
    """The bytes of each token: token i is `data[offsets[i]:offsets[i + 1]]`. Special tokens never match as
    text."""

    offsets: NDArray[np.int32]  # [size + 1]: where each token's bytes begin in `data`
    data: NDArray[np.uint8]
    special: NDArray[np.bool_]  # [size]: whether each token is special
    eos: tuple[int, ...]  # end-of-sequence ids; the tokenizer's own comes first
    hash: str

    @property
    def size(self) -> int:
        return len(self.special)

    def token_bytes(self, token: int) -> bytes:
        return self.data[self.offsets[token] : self.offsets[token + 1]].tobytes()

    @property
    def special_names(self) -> dict[str, int]:
        """The ids of special tokens by their text, without end-of-sequence tokens."""
        named = [token for token in np.flatnonzero(self.special).tolist() if token not in self.eos]
        names = {self.token_bytes(token).decode(errors="replace"): token for token in reversed(named)}
        return {name: token for name, token in names.items() if name}

    def for_automata(self) -> Vocabulary:
        """The vocabulary for automata: special tokens have bytes, made from their ids, that no text has.

        End-of-sequence tokens and tokens that no text can contain have no bytes.
        """
        named = frozenset(self.special_names.values())
        unused = np.searchsorted(self.offsets, np.flatnonzero(self.data >= FIRST_UNUSED_BYTE), "right") - 1
        lengths = np.diff(self.offsets)
        pieces: list[bytes] = []
        end = 0
        for token in sorted({*np.flatnonzero(self.special).tolist(), *unused.tolist(), *self.eos}):
            encoded = _special_bytes(token) if token in named else b""
            pieces += [self.data[end : self.offsets[token]].tobytes(), encoded]
            end = self.offsets[token + 1]
            lengths[token] = len(encoded)
        pieces.append(self.data[end:].tobytes())
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        return self._replace(offsets=offsets, data=np.frombuffer(b"".join(pieces), np.uint8))


def _special_bytes(token: int) -> bytes:
    digits = (token >> 3 * place & 7 for place in reversed(range(_DIGITS)))
    return bytes([_MARK, *(FIRST_UNUSED_BYTE + digit for digit in digits)])


def build_vocabulary(tokens: list[bytes], special: list[bool], eos: tuple[int, ...]) -> Vocabulary:
    """Makes a vocabulary from `tokens[i]` and `special[i]` for every id below the model's vocabulary size."""
    offsets = np.zeros(len(tokens) + 1, np.int32)
    np.cumsum([len(token) for token in tokens], out=offsets[1:])
    data = np.frombuffer(b"".join(tokens), np.uint8)
    flags = np.array(special, np.bool_)
    digest = hashlib.sha256()
    for part in (offsets.tobytes(), data.tobytes(), flags.tobytes(), repr(eos).encode()):
        digest.update(part)
    return Vocabulary(offsets, data, flags, eos, digest.hexdigest())


def save_vocabulary(vocabulary: Vocabulary, directory: Path) -> None:
    """Writes the file atomically: readers see the whole file or none."""
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
