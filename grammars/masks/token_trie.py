"""The vocabulary as tries over bytes, which are walked from automaton states to find their token masks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..jit import njit
from .spellings import Spellings

MAX_QUOTE_FREE_BYTES = 32  # bytes of the longest quote-free token; a longer token goes into the other trie
QUOTE = 0x22
OTHER, QUOTE_FREE = 0, 1


class TokenTries(NamedTuple):
    """Two tries: *quote-free* tokens (no quote, at most `MAX_QUOTE_FREE_BYTES` bytes), and all other tokens.

    The effect of a quote-free token inside a string does not depend on what follows the string.

    Nodes are in preorder: the subtree of node i is [i, ends[i]), and the tokens that end at node i are
    `tokens[token_starts[i]:token_starts[i + 1]]`. Its children are `child[first_child[i]:first_child[i +
    1]]`; their bytes stand side by side, as most walks reject most children.
    """

    roots: NDArray[np.int32]  # [2, 256]: the node of each first byte in `OTHER` and `QUOTE_FREE`, or -1
    ends: NDArray[np.int32]  # [nodes]: the end of each node's subtree
    depth: NDArray[np.uint16]  # [nodes]: number of bytes before the byte of the node
    byte: NDArray[np.uint8]  # [nodes]: the byte of each node
    token_starts: NDArray[np.int32]  # [nodes + 1]: index of the first token of each node
    tokens: NDArray[np.int32]
    first_child: NDArray[np.int32]  # [nodes + 1]: index of the first child of each node
    child: NDArray[np.int32]
    child_byte: NDArray[np.uint8]
    eos: NDArray[np.int32]
    first_quote_free: int  # the first node of the quote-free trie
    mask_words: int
    max_bytes: int  # bytes of the longest token


def build_tries(spellings: Spellings) -> TokenTries:
    """The tries of a vocabulary, without tokens that have no bytes."""
    raw, offsets = spellings.data.tobytes(), spellings.offsets.tolist()
    spelled = [
        (raw[start:end], token)
        for token, (start, end) in enumerate(itertools.pairwise(offsets))
        if start < end
    ]
    return make_tries(spelled, spellings.eos_tokens, spellings.vocab_size)


def make_tries(
    spelled: Sequence[tuple[bytes, int]], eos_tokens: tuple[int, ...], vocab_size: int
) -> TokenTries:
    """The tries of (bytes, token) pairs, none of them empty."""
    ordered = sorted(spelled)
    quote_free = [pair for pair in ordered if len(pair[0]) <= MAX_QUOTE_FREE_BYTES and QUOTE not in pair[0]]
    other = [pair for pair in ordered if len(pair[0]) > MAX_QUOTE_FREE_BYTES or QUOTE in pair[0]]
    ordered = [*other, *quote_free]
    data = np.frombuffer(b"".join(text for text, _ in ordered), np.uint8)
    offsets = np.cumsum([0, *(len(text) for text, _ in ordered)]).astype(np.int32)
    byte, depth, ends, first_tokens = _nodes(data, offsets, len(other))
    firsts = np.flatnonzero(depth == 0)
    roots = np.full((2, 256), -1, np.int32)
    roots[np.where(first_tokens[firsts] < len(other), OTHER, QUOTE_FREE), byte[firsts]] = firsts
    first_child, child = _children(ends)
    return TokenTries(
        roots=roots,
        ends=ends,
        depth=depth.astype(np.uint16),
        byte=byte,
        token_starts=np.append(first_tokens, np.int32(len(ordered))),
        tokens=np.array([token for _, token in ordered], np.int32),
        first_child=first_child,
        child=child,
        child_byte=byte[child],
        eos=np.array(eos_tokens, np.int32),
        first_quote_free=int(np.searchsorted(first_tokens, len(other))),
        mask_words=-(-vocab_size // 32),
        max_bytes=max((len(text) for text, _ in spelled), default=0),
    )


def token_lengths(tries: TokenTries) -> NDArray[np.int32]:
    """The number of bytes of each token, int32 [32 * mask_words]; 0 for end-of-sequence tokens."""
    lengths = np.zeros(32 * tries.mask_words, np.int32)
    lengths[tries.tokens] = np.repeat(tries.depth + 1, np.diff(tries.token_starts))
    return lengths


@njit(cache=True)
def _nodes(data, offsets, second):
    """Byte, depth, end and first token of each node, for texts in order; text `second` begins the second
    trie."""
    byte = np.empty(len(data), np.uint8)
    depth = np.empty(len(data), np.int32)
    ends = np.empty(len(data), np.int32)
    first_tokens = np.empty(len(data), np.int32)
    open_nodes = np.empty(len(data) + 1, np.int32)
    nodes = 0
    open_count = 0
    for token in range(len(offsets) - 1):
        start, end = offsets[token], offsets[token + 1]
        common = 0
        shared = 0 if token == second else min(open_count, end - start)
        while common < shared and byte[open_nodes[common]] == data[start + common]:
            common += 1
        for level in range(common, open_count):
            ends[open_nodes[level]] = nodes
        for level in range(common, end - start):
            open_nodes[level] = nodes
            byte[nodes] = data[start + level]
            depth[nodes] = level
            first_tokens[nodes] = token
            nodes += 1
        open_count = end - start
    for level in range(open_count):
        ends[open_nodes[level]] = nodes
    return byte[:nodes].copy(), depth[:nodes].copy(), ends[:nodes].copy(), first_tokens[:nodes].copy()


@njit(cache=True)
def _children(ends):
    """The offsets of the children of each node, and the children."""
    first = np.zeros(len(ends) + 1, np.int32)
    children = np.empty(len(ends), np.int32)
    found = 0
    for node in range(len(ends)):
        child = node + 1
        while child < ends[node]:
            children[found] = child
            found += 1
            child = ends[child]
        first[node + 1] = found
    return first, children[:found].copy()
