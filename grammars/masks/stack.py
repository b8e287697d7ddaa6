"""Builds the token masks of all states of an automaton: see the package's docstring for the steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import TooLargeError
from ..machine.stack_automaton import StackAutomaton
from .edge_walks import Limits
from .list_sharing import renumber, share_decided
from .lists import Lists, no_lists
from .quote_free import QuoteFreeMasks, VocabularyTables
from .state_lists import StateTables, put_based_on, put_costly, put_listed
from .token_trie import TokenTries
from .walker import Walker
from .walks import Machine

MAX_MASK_BYTES = 16 << 20  # of one grammar
MAX_NODES = 1024  # to visit for one state; beyond, computing its fingerprint is faster
EMPTY = -1


@dataclass(frozen=True, eq=False)
class MaskTables:
    """The mask of each state, in parts.

    State s allows the tokens with a bit in `masks[mask_of_state[s]]` (bit i % 32 of word i // 32; -1: none).
    Tokens in list `lists_of_state[s, 0]`, then those in list `[s, 1]`, switch between allowed and forbidden.
    Last, the stack decides each token in list `[s, 2]` by walking its bytes; the last `opener_counts[list]`
    of them only where the stack is nearly full, as they need free places on it.
    List i is `list_tokens[list_offsets[i]:list_offsets[i + 1]]`; list 0 is empty. A state that accepts also
    allows the end-of-sequence tokens.
    """

    mask_of_state: NDArray[np.int32]  # [states]
    masks: NDArray[np.int32]  # [masks, ceil(vocab / 32)]
    lists_of_state: NDArray[np.int32]  # [states, 3]
    list_offsets: NDArray[np.int32]  # [lists + 1]
    list_tokens: NDArray[np.int32]
    opener_counts: NDArray[np.int32]  # [lists]

    @property
    def nbytes(self) -> int:
        """The bytes of masks and lists, without the tables of states."""
        return self.masks.nbytes + self.list_tokens.nbytes


class StackMasks:
    """Builds masks over one vocabulary."""

    def __init__(self, tries: TokenTries) -> None:
        self._vocabulary = VocabularyTables(tries)

    def of(self, automaton: StackAutomaton) -> MaskTables:
        """Raises TooLargeError if the masks take too much memory."""
        tables = _MaskBuilder(self._vocabulary, automaton).build()
        self._vocabulary.trim()
        return tables


class _MaskBuilder:
    """Builds the masks of one automaton."""

    def __init__(self, vocabulary: VocabularyTables, automaton: StackAutomaton) -> None:
        self._vocabulary = vocabulary
        machine = Machine(
            automaton.transitions, automaton.class_of_byte, automaton.actions, automaton.returns
        )
        self._accepting = automaton.accepting
        self._bodies = automaton.body_of_state
        self._bases = automaton.like_state
        self._walker = Walker(vocabulary.tries, machine, vocabulary.buffers)
        self._quote_free = QuoteFreeMasks(vocabulary, self._walker)
        self._limits = Limits(MAX_NODES, vocabulary.max_differences)
        self._lists: Lists = no_lists()
        states = len(self._bases)
        self._tables = StateTables(np.zeros((states, 3), np.int32), np.full(states, EMPTY, np.int32))

    def build(self) -> MaskTables:
        """Bases come first, then the states whose base is not costly, then those based on costly ones."""
        has_base = self._bases != np.arange(len(self._bases))
        self._put_walked(~has_base)
        based_on_costly = has_base & (self._tables.mask != EMPTY)[self._bases]
        self._put_walked(has_base & ~based_on_costly)
        self._put_based_on(np.flatnonzero(based_on_costly).astype(np.int32))
        return self._gathered()

    def _put_walked(self, chosen: NDArray[np.bool_]) -> None:
        """Walks the chosen states; those that turn out to be costly get a mask, the others only lists."""
        states = np.flatnonzero(chosen).astype(np.int32)
        if not len(states):
            return
        may_end, is_costly = self._accepting[states], self._bodies[states] != 0
        walked = self._walker.states(states, may_end, is_costly, self._limits)
        edges = self._walker.edges
        self._keep(put_listed(self._lists, edges, walked, self._tables, self._max_tokens()))
        if walked.costly.any():
            kinds, kind_of = self._quote_free.kinds(states[walked.costly])
            limit = self._max_tokens()
            self._keep(put_costly(self._lists, edges, walked, kinds, kind_of, self._tables, limit))

    def _put_based_on(self, states: NDArray[np.int32]) -> None:
        """Derives the masks of states from those of their costly bases."""
        if not len(states):
            return
        bases, marks = self._bases[states], self._vocabulary.marks
        ends_differ = self._accepting[states] != self._accepting[bases]
        differences = self._walker.differences(states, bases, ends_differ)
        limit = self._max_tokens()
        self._keep(put_based_on(self._lists, differences, states, bases, self._tables, marks, limit))

    def _keep(self, lists: Lists) -> None:
        self._lists = Lists(*lists)
        if self._lists.offsets[self._lists.used[0]] > self._max_tokens():
            raise TooLargeError(f"more than {MAX_MASK_BYTES >> 20} MiB of masks")

    def _max_tokens(self) -> int:
        """The tokens that all lists may hold beside the masks."""
        return (MAX_MASK_BYTES - sum(words.nbytes for words in self._quote_free.masks)) // 4

    def _gathered(self) -> MaskTables:
        share_decided(self._lists, self._tables.lists, self._vocabulary.marks)
        offsets, tokens, openers = renumber(self._lists, self._tables.lists)
        masks = np.array(self._quote_free.masks, np.uint32).reshape(-1, self._vocabulary.tries.mask_words)
        return MaskTables(
            mask_of_state=self._tables.mask,
            masks=masks.view(np.int32),
            lists_of_state=self._tables.lists,
            list_offsets=offsets,
            list_tokens=tokens,
            opener_counts=openers,
        )
