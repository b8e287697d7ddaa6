"""The vocabulary as tries over bytes, walked from automaton states to get their token masks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

PLAIN_BYTES = 32  # a longer token is not plain
QUOTE = 0x22
OTHER, PLAIN = 0, 1


class TokenTries(NamedTuple):
    """A trie of *plain* tokens, those without a quote and of at most `PLAIN_BYTES`, and one of the others.

    What plain tokens do inside a string doesn't depend on what comes after the string.

    Nodes are in preorder: node i is the last byte of some token's prefix, its subtree is [i, ends[i]). Tokens
    that are spelled by the path to it are `tokens[token_starts[i]:token_starts[i + 1]]`. The nodes one byte
    further are `child[first_child[i]:first_child[i + 1]]`: their bytes lie side by side for walks, in which
    most of them lead nowhere.
    """

    roots: NDArray[np.int32]  # [2, 256], the node of each first byte, -1 for none: `OTHER`, then `PLAIN`
    ends: NDArray[np.int32]  # [nodes]
    depth: NDArray[np.uint16]  # [nodes], bytes before the node's
    byte: NDArray[np.uint8]  # [nodes]
    height: NDArray[np.int32]  # [nodes], of the longest way on
    token_starts: NDArray[np.int32]  # [nodes + 1]
    tokens: NDArray[np.int32]
    first_child: NDArray[np.int32]  # [nodes + 1]
    child: NDArray[np.int32]
    child_byte: NDArray[np.uint8]
    eos: NDArray[np.int32]
    first_plain: int
    """node"""
    mask_words: int
    max_bytes: int
    """of a token"""


class Spellings(NamedTuple):
    """Token i is `data[offsets[i]:offsets[i + 1]]`. The model may have more tokens than are spelled here."""

    offsets: NDArray[np.int32]  # [tokens + 1]
    data: NDArray[np.uint8]
    eos_tokens: tuple[int, ...]
    vocab_size: int


def build_tries(spellings: Spellings) -> TokenTries:
    """Tokens without bytes are left out."""
    raw, offsets = spellings.data.tobytes(), spellings.offsets.tolist()
    spelled = [
        (raw[start:end], token)
        for token, (start, end) in enumerate(itertools.pairwise(offsets))
        if start < end
    ]
    return tries_of(spelled, spellings.eos_tokens, spellings.vocab_size)


def tries_of(
    spelled: Sequence[tuple[bytes, int]], eos_tokens: tuple[int, ...], vocab_size: int
) -> TokenTries:
    """The tries of these texts, none of them empty, each with its token."""
    ordered = sorted(spelled)
    plain = [pair for pair in ordered if len(pair[0]) <= PLAIN_BYTES and QUOTE not in pair[0]]
    other = [pair for pair in ordered if len(pair[0]) > PLAIN_BYTES or QUOTE in pair[0]]
    ordered = [*other, *plain]
    data = np.frombuffer(b"".join(text for text, _ in ordered), np.uint8)
    offsets = np.cumsum([0, *(len(text) for text, _ in ordered)]).astype(np.int32)
    byte, depth, ends, first_tokens = _nodes(data, offsets, len(other))
    firsts = np.flatnonzero(depth == 0)
    roots = np.full((2, 256), -1, np.int32)
    roots[np.where(first_tokens[firsts] < len(other), OTHER, PLAIN), byte[firsts]] = firsts
    first_child, child = _children(ends)
    return TokenTries(
        roots=roots,
        ends=ends,
        depth=depth.astype(np.uint16),
        byte=byte,
        height=_heights(ends),
        token_starts=np.append(first_tokens, np.int32(len(ordered))),
        tokens=np.array([token for _, token in ordered], np.int32),
        first_child=first_child,
        child=child,
        child_byte=byte[child],
        eos=np.array(eos_tokens, np.int32),
        first_plain=int(np.searchsorted(first_tokens, len(other))),
        mask_words=-(-vocab_size // 32),
        max_bytes=max((len(text) for text, _ in spelled), default=0),
    )


@njit(cache=True)
def _nodes(data, offsets, second):  # type: ignore[no-untyped-def]
    """Byte, depth, end and first token of each node, for texts in order; from text `second` on of a trie of
    its own."""
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
def _heights(ends):  # type: ignore[no-untyped-def]
    height = np.zeros(len(ends), np.int32)
    for node in range(len(ends) - 1, -1, -1):
        child = node + 1
        while child < ends[node]:
            height[node] = max(height[node], height[child] + 1)
            child = ends[child]
    return height


@njit(cache=True)
def _children(ends):  # type: ignore[no-untyped-def]
    """Where those of each node begin, and all of them."""
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
