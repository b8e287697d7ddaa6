"""Masks of the quote-free tokens that costly states allow, stored once or as differences from another
mask."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..jit import njit
from .state_fingerprints import Fingerprinter
from .state_lists import Kinds
from .token_trie import TokenTries, token_lengths
from .unowned import unowned
from .walker import Walker
from .walks import Buffers, make_buffers

MAX_LIST_SHARE = 4  # a list of differences takes at most a mask's bytes divided by this
MAX_REMEMBERED = 2048  # masks that are remembered; each has 16 KB for 131k tokens
MAX_COMPARED = 64  # remembered masks from which a new mask may be stored as differences
_BLOCK = 256  # words that are compared at once
_NOTHING = np.empty(0, np.int32)


class QuoteFreeMask(NamedTuple):
    """`words`, uint32 [ceil(vocab / 32)], has a bit for each quote-free token that a state allows."""

    words: NDArray[np.uint32]
    undecided: NDArray[np.int32]
    openers: NDArray[np.int32]


class VocabularyTables:
    """The data that the masks of all automata over one vocabulary share."""

    def __init__(self, tries: TokenTries) -> None:
        self.tries = tries
        self.max_differences = tries.mask_words // MAX_LIST_SHARE
        """number of tokens by which two states may differ that share a mask"""
        self.buffers: Buffers = make_buffers(len(tries.tokens) + len(tries.eos))
        self.token_lengths = token_lengths(tries)
        self.marks = np.zeros(32 * tries.mask_words, np.int8)
        """scratch, one number for each token; all 0 between uses"""
        self.fingerprinter = Fingerprinter()
        self.remembered: OrderedDict[int, QuoteFreeMask] = OrderedDict()
        """masks by fingerprint, the least recently used first"""

    def trim(self) -> None:
        while len(self.remembered) > MAX_REMEMBERED:
            self.remembered.popitem(last=False)


class QuoteFreeMasks:
    """The masks of one automaton, one for each kind of costly state."""

    def __init__(self, vocabulary: VocabularyTables, walker: Walker) -> None:
        self.masks: list[NDArray[np.uint32]] = []
        self._vocabulary = vocabulary
        self._walker = walker
        self._kinds: dict[int, int] = {}
        """number of each kind by fingerprint"""
        self._stored: list[tuple[int, NDArray[np.int32]]] = []
        """for each kind, the index of its mask, and the tokens that differ from that mask"""
        self._masks_of_kinds: list[QuoteFreeMask] = []

    def kinds(self, states: NDArray[np.int32]) -> tuple[Kinds, NDArray[np.int32]]:
        """All kinds so far, and the kind of each of these states."""
        fingerprinter = self._vocabulary.fingerprinter
        fingerprints = fingerprinter.fingerprint(self._walker.context.machine, states).tolist()
        for state, fingerprint in zip(states.tolist(), fingerprints, strict=True):
            if fingerprint not in self._kinds:
                self._add(fingerprint, state)
        spans = [
            span
            for (_, differing), mask in zip(self._stored, self._masks_of_kinds, strict=True)
            for span in (differing, mask.undecided, mask.openers)
        ]
        masks = np.array([mask for mask, _ in self._stored], np.int32)
        ends = np.cumsum([len(span) for span in spans]).reshape(-1, 3)
        kind_of = np.array([self._kinds[fingerprint] for fingerprint in fingerprints], np.int32)
        return Kinds(masks, np.concatenate(spans), ends), kind_of

    def _add(self, fingerprint: int, state: int) -> None:
        remembered = self._vocabulary.remembered
        if fingerprint not in remembered:
            remembered[fingerprint] = self._walk(state)
        remembered.move_to_end(fingerprint)
        mask = remembered[fingerprint]
        self._kinds[fingerprint] = len(self._masks_of_kinds)
        self._masks_of_kinds.append(mask)
        self._stored.append(self._store(mask.words))

    def _walk(self, state: int) -> QuoteFreeMask:
        allowed, undecided, openers = self._walker.quote_free(state)
        words = np.zeros(self._vocabulary.tries.mask_words, np.uint32)
        _flip_bits(words, allowed)
        return QuoteFreeMask(words, undecided.copy(), openers.copy())

    def _store(self, words: NDArray[np.uint32]) -> tuple[int, NDArray[np.int32]]:
        """Finds the mask from which a new mask differs least. Returns it and the tokens that differ, or the
        new mask if they are too many."""
        differing, nearest = self._vocabulary.buffers.allowed[: self._vocabulary.max_differences], -1
        for number in range(len(self.masks))[-MAX_COMPARED:]:
            count = _differences(words, self.masks[number], differing)
            if count >= 0:
                differing, nearest = differing[:count], number
        if nearest >= 0:
            return nearest, differing.copy()
        self.masks.append(words)
        return len(self.masks) - 1, _NOTHING


@njit(cache=True, nogil=True)
def _flip_bits(words, tokens):
    for token in tokens:
        words[token >> 5] ^= np.uint32(1) << np.uint32(token & 31)


@njit(cache=True, nogil=True)
def _differences(words, others, tokens):
    """Writes the tokens whose bits differ into `tokens`. Returns their number; or -1, without writing any, if
    they exceed its length."""
    words, others, tokens = unowned((words, others, tokens))
    count = 0
    for start in range(0, len(words), _BLOCK):
        for place in range(start, min(start + _BLOCK, len(words))):
            count += _popcount(words[place] ^ others[place])
        if count > len(tokens):
            return -1
    found = 0
    for place in range(len(words)):
        differing = np.int64(words[place] ^ others[place])
        while differing:
            lowest = differing & -differing
            tokens[found] = 32 * place + _popcount(lowest - 1)
            found += 1
            differing ^= lowest
    return found


@njit(nogil=True, forceinline=True)
def _popcount(word):
    """The number of set bits of a 32-bit word."""
    bits = np.uint64(word)
    bits -= (bits >> np.uint64(1)) & np.uint64(0x55555555)
    bits = (bits & np.uint64(0x33333333)) + ((bits >> np.uint64(2)) & np.uint64(0x33333333))
    bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F)
    return np.int64(((bits * np.uint64(0x01010101)) >> np.uint64(24)) & np.uint64(0xFF))
