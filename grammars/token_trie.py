"""The vocabulary as a trie over bytes, walked once for each automaton state to get its token mask."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class TokenTrie(NamedTuple):
    """Nodes in preorder: node i is the last byte of some token's prefix, its subtree is [i, ends[i]).

    Tokens that are spelled by the path to node i are `tokens[token_starts[i]:token_starts[i + 1]]`.
    """

    byte: NDArray[np.uint8]  # [nodes]
    depth: NDArray[np.int32]  # [nodes], 0 for first bytes
    ends: NDArray[np.int32]  # [nodes]
    token_starts: NDArray[np.int32]  # [nodes + 1]
    tokens: NDArray[np.int32]
    eos: NDArray[np.int32]
    mask_words: int
    max_depth: int


def build_trie(
    offsets: NDArray[np.int32],
    data: NDArray[np.uint8],
    special: NDArray[np.bool_],
    eos_tokens: tuple[int, ...],
    vocab_size: int,
) -> TokenTrie:
    """Special tokens are left out: they never match as text. The same goes for tokens without bytes."""
    raw = data.tobytes()
    spelled = (
        (raw[offsets[token] : offsets[token + 1]], token)
        for token in range(len(special))
        if not special[token] and offsets[token + 1] > offsets[token]
    )
    return trie_of(spelled, eos_tokens, vocab_size)


def trie_of(spelled: Iterable[tuple[bytes, int]], eos_tokens: tuple[int, ...], vocab_size: int) -> TokenTrie:
    """The trie of these texts, none of them empty, each with its token."""
    byte: list[int] = []
    depth: list[int] = []
    ends: list[int] = []
    token_starts: list[int] = []
    tokens: list[int] = []
    open_nodes: list[int] = []
    previous = b""
    for text, token in sorted(spelled):
        common = _common_prefix(previous, text)
        for node in open_nodes[common:]:
            ends[node] = len(byte)
        del open_nodes[common:]
        for level in range(common, len(text)):
            open_nodes.append(len(byte))
            byte.append(text[level])
            depth.append(level)
            ends.append(0)
            token_starts.append(len(tokens))
        tokens.append(token)
        previous = text
    for node in open_nodes:
        ends[node] = len(byte)
    return TokenTrie(
        byte=np.array(byte, np.uint8),
        depth=np.array(depth, np.int32),
        ends=np.array(ends, np.int32),
        token_starts=np.array([*token_starts, len(tokens)], np.int32),
        tokens=np.array(tokens, np.int32),
        eos=np.array(eos_tokens, np.int32),
        mask_words=-(-vocab_size // 32),
        max_depth=max(depth, default=0) + 1,
    )


def _common_prefix(left: bytes, right: bytes) -> int:
    length = min(len(left), len(right))
    for i in range(length):
        if left[i] != right[i]:
            return i
    return length
