"""Masks of what states in strings do with plain tokens, each kept once, or as what differs from another."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .signatures import Rounds, Signatures
from .state_lists import Kinds, apart
from .token_trie import PLAIN_BYTES, TokenTries
from .unowned import unowned
from .walker import Walker
from .walks import Found, room_for

LISTED_SHARE = 4  # a list takes at most this part of a mask's bytes
REMEMBERED = 2048  # masks of 16 KB over 131k tokens
COMPARED = 8  # masks beside which one is tried before it is kept whole
ALIKE = 8  # bytes on which states must agree for one's mask to be found from the other's
_FIRST_NEAR = 64
_BLOCK = 256  # words
_NOTHING = np.empty(0, np.int32)


class PlainMask(NamedTuple):
    """The tokens that a state allows have a bit in `words`, uint32 [ceil(vocab / 32)]."""

    words: NDArray[np.uint32]
    undecided: NDArray[np.int32]
    openers: NDArray[np.int32]


class Tools:
    """What all automata over one vocabulary have in common."""

    def __init__(self, tries: TokenTries) -> None:
        self.tries = tries
        self.few = tries.mask_words // LISTED_SHARE
        """the most tokens by which masks differ that share one"""
        self.found: Found = room_for(len(tries.tokens) + len(tries.eos))
        self.marks = np.zeros(32 * tries.mask_words, np.bool_)
        """room for a mark for each token, none set"""
        self.signatures = Signatures()
        self.remembered: OrderedDict[int, PlainMask] = OrderedDict()
        """by signature"""

    def trim(self) -> None:
        while len(self.remembered) > REMEMBERED:
            self.remembered.popitem(last=False)


class PlainMasks:
    """Those of one automaton."""

    def __init__(self, tools: Tools, walker: Walker) -> None:
        self.masks: list[NDArray[np.uint32]] = []
        self._tools = tools
        self._walker = walker
        self._kinds: dict[int, int] = {}
        """by signature"""
        self._placed: list[tuple[int, NDArray[np.int32]]] = []
        """of each kind its mask, and the tokens that differ from it"""
        self._plain: list[PlainMask] = []
        """of each kind"""
        self._near = np.empty((_FIRST_NEAR, 2), np.int32)
        """a state of each kind of which nothing is undecided, and the kind"""
        self._near_count = 0

    def kinds(self, states: NDArray[np.int32]) -> tuple[Kinds, NDArray[np.int32]]:
        """All kinds so far, and those of these states."""
        rounds = self._tools.signatures.of(self._walker.machine, states)
        signatures = rounds.states[PLAIN_BYTES, rounds.place[states]].tolist()
        for state, signature in zip(states.tolist(), signatures, strict=True):
            if signature not in self._kinds:
                self._add(signature, state, rounds)
        parts = [
            part
            for (_, differing), plain in zip(self._placed, self._plain, strict=True)
            for part in (differing, plain.undecided, plain.openers)
        ]
        masks = np.array([mask for mask, _ in self._placed], np.int32)
        ends = np.cumsum([len(part) for part in parts]).reshape(-1, 3)
        return Kinds(masks, np.concatenate(parts), ends), np.array(
            [self._kinds[signature] for signature in signatures], np.int32
        )

    def _add(self, signature: int, state: int, rounds: Rounds) -> None:
        remembered = self._tools.remembered
        kind = len(self._plain)
        if signature not in remembered:
            remembered[signature] = self._beside_another(state, rounds) or self._walked(state)
        remembered.move_to_end(signature)
        plain = remembered[signature]
        self._kinds[signature] = kind
        self._plain.append(plain)
        if len(self._placed) == kind:
            self._placed.append(self._place(plain.words))
        if not len(plain.undecided) and not len(plain.openers):
            self._note_near(state, kind)

    def _note_near(self, state: int, kind: int) -> None:
        if self._near_count == len(self._near):
            self._near = np.concatenate([self._near, np.empty_like(self._near)])
        self._near[self._near_count] = state, kind
        self._near_count += 1

    def _walked(self, state: int) -> PlainMask:
        allowed, undecided, openers = self._walker.plain(state)
        words = np.zeros(self._tools.tries.mask_words, np.uint32)
        _flip_bits(words, allowed)
        return PlainMask(words, undecided.copy(), openers.copy())

    def _beside_another(self, state: int, rounds: Rounds) -> PlainMask | None:
        """Found from the mask of the state that agrees with it on the longest texts, if there is one."""
        near = self._near[: self._near_count]
        nearest = _nearest(rounds, state, near, ALIKE)
        if nearest < 0:
            return None
        tools = self._tools
        like, kind = near[nearest].tolist()
        differing = self._walker.apart(rounds, state, like)
        if differing is None:
            return None
        words = self._plain[kind].words.copy()
        _flip_bits(words, differing)
        mask, its = self._placed[kind]
        both = apart(its, differing, tools.marks)
        if len(both) <= tools.few:
            self._placed.append((mask, both))
        return PlainMask(words, _NOTHING, _NOTHING)

    def _place(self, words: NDArray[np.uint32]) -> tuple[int, NDArray[np.int32]]:
        differing = self._tools.found.allowed[: self._tools.few]
        for number in range(len(self.masks))[-COMPARED:]:
            count = _differences(words, self.masks[number], differing)
            if count >= 0:
                return number, differing[:count].copy()
        self.masks.append(words)
        return len(self.masks) - 1, _NOTHING


@njit(cache=True, nogil=True)
def _nearest(rounds, state, near, least):  # type: ignore[no-untyped-def]
    """The last of the states near, as far as rounds know them, that agrees with a state on the longest texts;
    -1 if none does on `least` bytes."""
    best, length = -1, least
    for number in range(len(near) - 1, -1, -1):
        place = rounds.place[near[number, 0]]
        while (
            place >= 0
            and length <= PLAIN_BYTES
            and rounds.states[length, rounds.place[state]] == rounds.states[length, place]
        ):
            best = number
            length += 1
    return best


@njit(cache=True, nogil=True)
def _flip_bits(words, tokens):  # type: ignore[no-untyped-def]
    for token in tokens:
        words[token >> 5] ^= np.uint32(1) << np.uint32(token & 31)


@njit(cache=True, nogil=True)
def _differences(words, others, tokens):  # type: ignore[no-untyped-def]
    """Puts the tokens with other bits into `tokens`; how many they are, -1 if there is no room."""
    words, others, tokens = unowned((words, others, tokens))
    count = 0
    for start in range(0, len(words), _BLOCK):
        for place in range(start, min(start + _BLOCK, len(words))):
            count += _bits(words[place] ^ others[place])
        if count > len(tokens):
            return -1
    found = 0
    for place in range(len(words)):
        differing = np.int64(words[place] ^ others[place])
        while differing:
            lowest = differing & -differing
            tokens[found] = 32 * place + _bits(lowest - 1)
            found += 1
            differing ^= lowest
    return found


@njit(nogil=True, forceinline=True)
def _bits(word):  # type: ignore[no-untyped-def]
    """How many are set of 32."""
    bits = np.uint64(word)
    bits -= (bits >> np.uint64(1)) & np.uint64(0x55555555)
    bits = (bits & np.uint64(0x33333333)) + ((bits >> np.uint64(2)) & np.uint64(0x33333333))
    bits = (bits + (bits >> np.uint64(4))) & np.uint64(0x0F0F0F0F)
    return np.int64(((bits * np.uint64(0x01010101)) >> np.uint64(24)) & np.uint64(0xFF))
