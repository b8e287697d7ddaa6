"""Builds the tables of an automaton, in the steps that the package's docstring lists."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...runtime.automaton_format import (
    KIND,
    NO_MASK,
    OPEN,
    OPENERS,
    RESERVE,
    SAFE_DEPTH,
    STACK_DEPTH,
    START,
    TOKENS,
    WORDS,
    AutomatonTables,
)
from ..errors import TooLargeError
from ..machine.packed_rows import pack_rows
from ..machine.stack_automaton import StackAutomaton
from .edge_walks import Limits
from .list_sharing import renumber, share_decided
from .lists import Lists, no_lists
from .quote_free import QuoteFreeMasks, VocabularyTables
from .state_lists import StateTables, put_costly, put_listed
from .token_trie import TokenTries
from .walker import Walker
from .walks import Machine

MAX_MASK_BYTES = 16 << 20  # maximal bytes of one grammar's masks
MAX_NODES = 1024  # nodes to visit for one state; with more, computing the state's fingerprint is faster


class StackMasks:
    """Builds the tables of automata over one vocabulary."""

    def __init__(self, tries: TokenTries) -> None:
        self._vocabulary = VocabularyTables(tries)

    def build(self, automaton: StackAutomaton) -> AutomatonTables:
        """The automaton's tables. Raises TooLargeError if the masks take too much memory."""
        tables = _MaskBuilder(self._vocabulary, automaton).build()
        self._vocabulary.trim()
        return tables


class _MaskBuilder:
    """Builds the masks of one automaton, and packs its transitions."""

    def __init__(self, vocabulary: VocabularyTables, automaton: StackAutomaton) -> None:
        self._vocabulary = vocabulary
        machine = Machine(
            automaton.transitions, automaton.class_of_byte, automaton.actions, automaton.returns
        )
        self._automaton = automaton
        self._walker = Walker(vocabulary.tries, machine, vocabulary.buffers)
        self._quote_free = QuoteFreeMasks(vocabulary, self._walker)
        self._limits = Limits(MAX_NODES, vocabulary.max_differences)
        self._lists: Lists = no_lists()
        states = len(automaton.accepting)
        self._tables = StateTables(np.zeros((states, 3), np.int32), np.full(states, NO_MASK, np.int32))

    def build(self) -> AutomatonTables:
        """Walks all states. Those that turn out to be costly get a mask, the others only lists."""
        automaton = self._automaton
        states = np.arange(len(automaton.accepting), dtype=np.int32)
        walked = self._walker.states(states, automaton.accepting, automaton.body_of_state != 0, self._limits)
        edges = self._walker.edges
        self._keep(put_listed(self._lists, edges, walked, self._tables, self._max_tokens()))
        if walked.costly.any():
            kinds, kind_of = self._quote_free.kinds(states[walked.costly])
            limit = self._max_tokens()
            self._keep(put_costly(self._lists, edges, walked, kinds, kind_of, self._tables, limit))
        return self._gather()

    def _keep(self, lists: Lists) -> None:
        self._lists = Lists(*lists)
        if self._lists.offsets[self._lists.used[0]] > self._max_tokens():
            raise TooLargeError(f"more than {MAX_MASK_BYTES >> 20} MiB of masks")

    def _max_tokens(self) -> int:
        """The number of tokens that all lists may hold together beside the masks."""
        return (MAX_MASK_BYTES - sum(words.nbytes for words in self._quote_free.masks)) // 4

    def _gather(self) -> AutomatonTables:
        automaton, tables, vocabulary = self._automaton, self._tables, self._vocabulary
        share_decided(self._lists, tables.lists, vocabulary.marks)
        lists, tokens = renumber(self._lists, tables.lists)
        lists[:, SAFE_DEPTH] = safe_depths(automaton.actions, lists, vocabulary.token_lengths[tokens])
        masks = np.array(self._quote_free.masks, np.uint32).reshape(-1, vocabulary.tries.mask_words)
        rows = pack_rows(automaton.transitions, automaton.like_state)
        return AutomatonTables(
            class_of_byte=automaton.class_of_byte,
            states=np.column_stack([rows.row_starts, rows.default_state, tables.mask, tables.lists]),
            entries=rows.entries,
            actions=automaton.actions,
            returns=automaton.returns,
            masks=masks.view(np.int32),
            lists=lists,
            list_tokens=tokens,
        )


def safe_depths(
    actions: NDArray[np.int32], lists: NDArray[np.int32], lengths: NDArray[np.int32]
) -> NDArray[np.int32]:
    """The `SAFE_DEPTH` of each list. `lengths`: bytes of each token, one list after the other."""
    opens = actions[:, KIND] == OPEN
    places = 1 + int(actions[opens, WORDS].max(initial=0))  # number of stack places that one byte may fill
    reserve = max(int(actions[:, RESERVE].max(initial=0)) - places, 0)
    longest = np.zeros(len(lists), np.int32)
    has_openers = lists[:, OPENERS] > 0
    if has_openers.any():
        first = (lists[:, START] + lists[:, TOKENS])[has_openers]
        bounds = np.column_stack([first, first + lists[has_openers, OPENERS]]).ravel()
        longest[has_openers] = np.maximum.reduceat(np.append(lengths, 0), bounds)[::2]
    return STACK_DEPTH - reserve - places * longest
