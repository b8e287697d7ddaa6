"""The vocabulary as a trie over bytes, walked once for each automaton state to get its token mask."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .errors import TooLargeError

MAX_MASK_BYTES = 16 << 20  # 1,024 masks over 131k tokens; a regex for an e-mail address has 30


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

    def mask(
        self,
        transitions: NDArray[np.int32],
        class_of_byte: NDArray[np.uint8],
        state: int,
        accepting: bool,
    ) -> NDArray[np.int32]:
        """Bits of the tokens whose bytes lead somewhere from `state`, and of the ends if it accepts."""
        words = np.zeros(self.mask_words, np.uint32)
        path = np.empty(self.max_depth + 1, np.int32)
        _walk(
            self.byte, self.depth, self.ends, self.token_starts, self.tokens,
            transitions, class_of_byte, state, path, words,
        )  # fmt: skip
        if accepting:
            np.bitwise_or.at(words, self.eos >> 5, np.uint32(1) << (self.eos & 31).astype(np.uint32))
        return words.view(np.int32)

    def check_room(self, masks: int) -> None:
        if masks * self.mask_words * 4 > MAX_MASK_BYTES:
            raise TooLargeError(f"more than {MAX_MASK_BYTES >> 20} MiB of masks")


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


@njit(nogil=True, cache=True)
def _walk(  # type: ignore[no-untyped-def]
    byte, depth, ends, token_starts, tokens, transitions, class_of_byte, state, path, words
):
    path[0] = state
    node = 0
    while node < len(byte):
        level = depth[node]
        target = transitions[path[level], class_of_byte[byte[node]]]
        if target < 0:
            node = ends[node]
            continue
        path[level + 1] = target
        for position in range(token_starts[node], token_starts[node + 1]):
            token = tokens[position]
            words[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
        node += 1
