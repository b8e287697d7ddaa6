"""Token masks for the states of automata with a stack.

Most states allow few tokens, which are listed. Inside strings they allow most of the vocabulary: such a
state has a mask of the *plain* tokens, found by what the state does with them, as it is the same wherever
such a string stands; the others are listed. A state that is like another has lists of what differs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import TooLargeError
from ..machine.stack_automaton import StackAutomaton
from .list_sharing import renumber, share_decided
from .lists import Lists, no_lists
from .plain import PlainMasks, Tools
from .state_lists import put_dear, put_like, put_listed
from .token_trie import TokenTries
from .walker import Walker
from .walks import Machine

MAX_MASK_BYTES = 16 << 20  # of one grammar
NODE_LIMIT = 1024  # beyond them it is sooner known what a state does
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


class StackMasks:
    """Makes masks for one vocabulary."""

    def __init__(self, tries: TokenTries) -> None:
        self._tools = Tools(tries)

    def of(self, automaton: StackAutomaton) -> MaskTables:
        """Raises TooLargeError if they take too much memory."""
        tables = _Making(self._tools, automaton).tables()
        self._tools.trim()
        return tables


class _Making:
    """The masks of one automaton."""

    def __init__(self, tools: Tools, automaton: StackAutomaton) -> None:
        self._tools = tools
        machine = Machine(
            automaton.transitions, automaton.class_of_byte, automaton.actions, automaton.returns
        )
        self._accepting = automaton.accepting
        self._bodies = automaton.body_of_state
        self._like = automaton.like_state
        self._walker = Walker(tools.tries, machine, tools.found)
        self._plain = PlainMasks(tools, self._walker)
        self._lists: Lists = no_lists()
        self._mask_of_state = np.full(len(self._like), EMPTY, np.int32)
        self._lists_of_state = np.zeros((len(self._like), 3), np.int32)

    def tables(self) -> MaskTables:
        """What is like another state comes after that one."""
        follows = self._like != np.arange(len(self._like))
        self._put_walked(~follows)
        close = follows & (self._mask_of_state != EMPTY)[self._like]
        self._put_walked(follows & ~close)
        self._put_like(np.flatnonzero(close).astype(np.int32))
        return self._gathered()

    def _put_walked(self, chosen: NDArray[np.bool_]) -> None:
        """Lists what these states allow. Those that are dear also get a mask, as there is too much."""
        states = np.flatnonzero(chosen).astype(np.int32)
        if not len(states):
            return
        is_dear = self._bodies[states] != 0
        walked = self._walker.states(states, self._accepting[states], is_dear, NODE_LIMIT, self._tools.few)
        branches = self._walker.branches
        self._keep(put_listed(self._lists, branches, walked, states, self._lists_of_state, self._room()))
        if walked.dear.any():
            kinds, kind = self._plain.kinds(states[walked.dear])
            of_state = (self._lists_of_state, self._mask_of_state)
            self._keep(put_dear(self._lists, branches, walked, states, kinds, kind, *of_state, self._room()))

    def _put_like(self, states: NDArray[np.int32]) -> None:
        """For states that are like dear ones: what those have, and what differs."""
        tools, likes = self._tools, self._like[states]
        if not len(states):
            return
        ends_apart = self._accepting[states] != self._accepting[likes]
        walked = self._walker.differences(states, likes, ends_apart)
        of_state = (self._lists_of_state, self._mask_of_state)
        self._keep(put_like(self._lists, walked, states, likes, *of_state, tools.marks, self._room()))

    def _keep(self, lists: Lists) -> None:
        self._lists = Lists(*lists)
        if self._lists.offsets[self._lists.used[0]] > self._room():
            raise TooLargeError(f"more than {MAX_MASK_BYTES >> 20} MiB of masks")

    def _room(self) -> int:
        """For tokens in lists."""
        return (MAX_MASK_BYTES - sum(words.nbytes for words in self._plain.masks)) // 4

    def _gathered(self) -> MaskTables:
        share_decided(self._lists, self._lists_of_state, self._tools.marks)
        offsets, tokens, openers = renumber(self._lists, self._lists_of_state)
        masks = np.array(self._plain.masks, np.uint32).reshape(-1, self._tools.tries.mask_words)
        return MaskTables(
            mask_of_state=self._mask_of_state,
            masks=masks.view(np.int32),
            lists_of_state=self._lists_of_state,
            list_offsets=offsets,
            list_tokens=tokens,
            opener_counts=openers,
        )
