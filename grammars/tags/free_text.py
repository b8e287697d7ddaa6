"""Free text up to the first of several patterns: the automaton of Aho and Corasick over bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...runtime.automaton_format import ACTION_COLUMNS, DEAD
from ..machine.stack_automaton import StackAutomaton

_START = 256  # code of a letter that stands for the position before the text's first byte
_NONE = -1


class Pattern(NamedTuple):
    """A pattern. `at_start`: whether it counts only at the text's start."""

    text: bytes
    at_start: bool = False


class FreeText(NamedTuple):
    """The automaton of free text. `found[i]` is the state after pattern i; it has no entries."""

    machine: StackAutomaton
    found: Sequence[int]


def free_text(patterns: Sequence[Pattern], *, may_end: bool) -> FreeText:
    """Makes the automaton of free text. `may_end`: the text may end anywhere before a pattern is complete.

    If several patterns end at the same byte, the longest one counts, and the first of equal ones. Patterns
    must not be empty.
    """
    trie = _Trie(patterns)
    nodes = len(trie.children)
    columns = {letter: place for place, letter in enumerate(trie.letters, 1)}
    table = np.zeros((nodes, len(columns) + 1), np.int32)
    for node in trie.order:
        trie.follow(node, table, columns)
    after = np.array([node if end == _NONE else nodes + end for node, end in enumerate(trie.ends)], np.int32)
    found = np.full((len(patterns), table.shape[1]), DEAD, np.int32)
    class_of_byte = np.zeros(256, np.uint8)
    class_of_byte[trie.letters] = np.arange(1, len(columns) + 1)
    states = np.arange(nodes + len(patterns), dtype=np.int32)
    machine = StackAutomaton(
        start=trie.start,
        class_of_byte=class_of_byte,
        transitions=np.concatenate([after[table], found]),
        actions=np.zeros((0, ACTION_COLUMNS), np.int32),
        returns=np.zeros(0, np.int32),
        accepting=states < (nodes if may_end else 0),
        body_of_state=np.zeros(len(states), np.int8),
        like_state=np.where(states < nodes, 0, states).astype(np.int32),
    )
    return FreeText(machine, range(nodes, nodes + len(patterns)))


class _Trie:
    """A trie of the patterns: a node for each prefix, 0 for the empty one. `ends[node]` is the pattern that
    ends at the node."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self.children: list[dict[int, int]] = [{}]
        self.ends = [_NONE]
        self.order = [0]
        """the nodes by depth"""
        self._failures = [0]
        for number, pattern in enumerate(patterns):
            self._add(number, [_START] * pattern.at_start + list(pattern.text))
        for node in self.order:
            self.order += self.children[node].values()
        self.letters = sorted({letter for child in self.children for letter in child} - {_START})
        self.start = self.children[0].get(_START, 0)

    def _add(self, number: int, letters: list[int]) -> None:
        node = 0
        for letter in letters:
            if letter not in self.children[node]:
                self.children[node][letter] = len(self.children)
                self.children.append({})
                self.ends.append(_NONE)
                self._failures.append(0)
            node = self.children[node][letter]
        if self.ends[node] == _NONE:
            self.ends[node] = number

    def follow(self, node: int, table: NDArray[np.int32], columns: dict[int, int]) -> None:
        """Fills in a node's row. The rows of the nodes before it in `order` must be filled in."""
        failure = self._failures[node]
        if self.ends[node] == _NONE:
            self.ends[node] = self.ends[failure]
        table[node] = table[failure]
        for letter, child in self.children[node].items():
            if letter != _START:
                self._failures[child] = int(table[failure, columns[letter]]) if node else 0
                table[node, columns[letter]] = child
