"""Token masks for the states of automata with a stack.

Most states allow few tokens, which are listed. Inside strings they allow most of the vocabulary: such a
state has a mask of the *plain* tokens, found by what the state does with them, as it is the same wherever
such a string stands; the others are listed. A state that is like another has lists of what differs.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .errors import TooLargeError
from .mask_walks import Found, Machine, Walked, room_for, walk_differences, walk_plain, walk_states
from .signatures import Signatures
from .stack_automaton import StackAutomaton
from .token_trie import TokenTries

MAX_MASK_BYTES = 16 << 20  # of one grammar
NODE_LIMIT = 1024  # beyond them it is sooner known what a state does
LISTED_SHARE = 4  # a list takes at most this part of a mask's bytes
REMEMBERED = 2048  # masks of 16 KB over 131k tokens
COMPARED = 8  # masks beside which one is tried before it is kept whole
EMPTY = -1


@dataclass(frozen=True, eq=False)
class MaskTables:
    """A mask for each state, in parts.

    State s allows the tokens with a bit in `masks[mask_of_state[s]]` (bit i % 32 of word i // 32; -1: none),
    except that those in lists `lists_of_state[s, 0]` and `[s, 1]` change sides, each in turn. Then the stack
    decides on those in list `[s, 2]`: whether they lead somewhere from here. Its last
    `opener_counts[list]` tokens need that only where the stack is nearly full: they need room.
    List i is `list_tokens[list_offsets[i]:list_offsets[i + 1]]`; list 0 is empty. Ends of sequence are
    allowed where the text may end.
    """

    mask_of_state: NDArray[np.int32]  # [states]
    masks: NDArray[np.int32]  # [masks, ceil(vocab / 32)]
    lists_of_state: NDArray[np.int32]  # [states, 3]
    list_offsets: NDArray[np.int32]  # [lists + 1]
    list_tokens: NDArray[np.int32]
    opener_counts: NDArray[np.int32]  # [lists]

    @property
    def nbytes(self) -> int:
        """Of masks and lists, without what there is for each state."""
        return self.masks.nbytes + self.list_tokens.nbytes


class _PlainMask(NamedTuple):
    """What a state in a string does with plain tokens; lists of them are packed int32."""

    words: NDArray[np.uint32]
    undecided: bytes
    openers: bytes


class StackMasks:
    """Makes masks for one vocabulary."""

    def __init__(self, tries: TokenTries) -> None:
        self._tries = tries
        self._found: Found = room_for(len(tries.plain.tokens) + len(tries.other.tokens) + len(tries.eos))
        self._few = tries.mask_words // LISTED_SHARE
        self._signatures = Signatures()
        self._plain_masks: OrderedDict[int, _PlainMask] = OrderedDict()

    def of(self, automaton: StackAutomaton) -> MaskTables:
        """Raises TooLargeError if they take too much memory."""
        machine = Machine(
            automaton.transitions,
            automaton.class_of_byte,
            automaton.actions,
            automaton.returns,
        )
        gathered = _Gathered(len(automaton.accepting), self._few)
        like = automaton.like_state
        follows = like != np.arange(len(like))
        dear = self._walk(gathered, machine, ~follows, automaton.accepting)
        close = follows & dear[like]
        self._walk(gathered, machine, follows & ~close, automaton.accepting)
        apart = automaton.accepting != automaton.accepting[like]
        self._compare(gathered, machine, np.flatnonzero(close), like[close], apart[close])
        return gathered.tables(self._tries.mask_words)

    def _walk(
        self,
        gathered: _Gathered,
        machine: Machine,
        chosen: NDArray[np.bool_],
        accepting: NDArray[np.bool_],
    ) -> NDArray[np.bool_]:
        """Lists what the chosen states allow. Returns those that also have a mask, as there is too much."""
        states = np.flatnonzero(chosen)
        ends_here = accepting[states]
        walked = Walked(
            *walk_states(self._tries, machine, states, ends_here, self._found, NODE_LIMIT, self._few)
        )
        for state, (allowed, undecided, openers) in zip(states.tolist(), _lists(walked), strict=True):
            gathered.put(state, allowed, undecided, openers)
        dear = np.zeros(len(chosen), np.bool_)
        dear[states[walked.dear]] = True
        self._fill(gathered, machine, states[walked.dear].astype(np.int32))
        return dear

    def _fill(self, gathered: _Gathered, machine: Machine, states: NDArray[np.int32]) -> None:
        signatures = self._signatures.of(machine, states) if len(states) else states
        for state, signature in zip(states.tolist(), signatures.tolist(), strict=True):
            if signature not in self._plain_masks:
                self._plain_masks[signature] = self._plain_mask(machine, state)
            self._plain_masks.move_to_end(signature)
            gathered.put_plain(state, signature, self._plain_masks[signature])
        while len(self._plain_masks) > REMEMBERED:
            self._plain_masks.popitem(last=False)

    def _plain_mask(self, machine: Machine, state: int) -> _PlainMask:
        allowed, undecided, openers = walk_plain(self._tries, machine, state, self._found)
        words = np.zeros(self._tries.mask_words, np.uint32)
        _set_bits(words, self._found.allowed[:allowed])
        return _PlainMask(
            words, self._found.undecided[:undecided].tobytes(), self._found.openers[:openers].tobytes()
        )

    def _compare(
        self,
        gathered: _Gathered,
        machine: Machine,
        states: NDArray[np.int64],
        likes: NDArray[np.int32],
        ends_apart: NDArray[np.bool_],
    ) -> None:
        walked = Walked(*walk_differences(self._tries, machine, states, likes, ends_apart, self._found))
        for state, like, lists in zip(states.tolist(), likes.tolist(), _lists(walked), strict=True):
            gathered.put_like(state, like, *lists)


def _lists(walked: Walked) -> list[tuple[bytes, bytes, bytes]]:
    """What is allowed, undecided and openers for each state, packed int32."""
    packed = walked.tokens.tobytes()
    ends = (4 * walked.ends.ravel()).tolist()
    spans = [packed[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return list(zip(spans[::3], spans[1::3], spans[2::3], strict=True))


class _Gathered:
    """Masks and lists, each kept once. `few` is the most tokens by which masks differ that share one."""

    def __init__(self, states: int, few: int) -> None:
        self._masks: list[NDArray[np.uint32]] = []
        self._placed: dict[int, tuple[int, bytes]] = {}
        """by signature the mask, and where it is another state's the tokens that differ"""
        self._lists: dict[tuple[bytes, bytes], int] = {(b"", b""): 0}
        self._contents = [(b"", b"")]
        self._mask_of_state = [EMPTY] * states
        self._lists_of_state = [(0, 0, 0)] * states
        self._differing = np.empty(few, np.int32)
        self._room = MAX_MASK_BYTES

    def put(self, state: int, allowed: bytes, undecided: bytes, openers: bytes) -> None:
        self._lists_of_state[state] = (self._list(allowed), 0, self._list(undecided, openers))

    def put_plain(self, state: int, signature: int, plain: _PlainMask) -> None:
        """Adds the mask to a state's lists."""
        if signature not in self._placed:
            self._placed[signature] = self._place(plain.words)
        self._mask_of_state[state], differing = self._placed[signature]
        shared, _, decided = self._lists_of_state[state]
        undecided, openers = self._contents[decided]
        decided = self._list(undecided + plain.undecided, openers + plain.openers)
        self._lists_of_state[state] = (shared, self._list(differing), decided)

    def put_like(self, state: int, like: int, differing: bytes, undecided: bytes, openers: bytes) -> None:
        """All that the other state has, and what differs."""
        self._mask_of_state[state] = self._mask_of_state[like]
        shared, own, decided = self._lists_of_state[like]
        if undecided or openers:
            below, above = self._contents[decided]
            decided = self._list(below + undecided, above + openers)
        if own:
            known = np.frombuffer(self._contents[own][0], np.int32)
            differing = np.setxor1d(known, np.frombuffer(differing, np.int32)).tobytes()
        self._lists_of_state[state] = (shared, self._list(differing), decided)

    def tables(self, mask_words: int) -> MaskTables:
        sizes = [(len(tokens) + len(openers)) // 4 for tokens, openers in self._contents]
        joined = b"".join(part for both in self._contents for part in both)
        masks = np.array(self._masks, np.uint32).reshape(-1, mask_words)
        return MaskTables(
            mask_of_state=np.array(self._mask_of_state, np.int32),
            masks=masks.view(np.int32),
            lists_of_state=np.array(self._lists_of_state, np.int32),
            list_offsets=np.cumsum([0, *sizes]).astype(np.int32),
            list_tokens=np.frombuffer(joined, np.int32),
            opener_counts=np.array([len(openers) // 4 for _, openers in self._contents], np.int32),
        )

    def _place(self, words: NDArray[np.uint32]) -> tuple[int, bytes]:
        for number in range(len(self._masks))[-COMPARED:]:
            count = _differences(words, self._masks[number], self._differing)
            if count >= 0:
                return number, self._differing[:count].tobytes()
        self._take(words.nbytes)
        self._masks.append(words)
        return len(self._masks) - 1, b""

    def _list(self, tokens: bytes, openers: bytes = b"") -> int:
        key = (tokens, openers)
        if key not in self._lists:
            self._take(len(tokens) + len(openers))
            self._lists[key] = len(self._contents)
            self._contents.append(key)
        return self._lists[key]

    def _take(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            raise TooLargeError(f"more than {MAX_MASK_BYTES >> 20} MiB of masks")


@njit(cache=True, nogil=True)
def _set_bits(words, tokens):  # type: ignore[no-untyped-def]
    for token in tokens:
        words[token >> 5] |= np.uint32(1) << np.uint32(token & 31)


@njit(cache=True, nogil=True)
def _differences(words, others, tokens):  # type: ignore[no-untyped-def]
    """Puts the tokens with other bits into `tokens`; how many they are, -1 if there is no room."""
    found = 0
    for place in range(len(words)):
        differing = words[place] ^ others[place]
        bit = 0
        while differing:
            if differing & np.uint32(1):
                if found == len(tokens):
                    return -1
                tokens[found] = 32 * place + bit
                found += 1
            differing >>= np.uint32(1)
            bit += 1
    return found
