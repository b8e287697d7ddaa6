"""Nondeterministic automata of regexes, and how they are made deterministic."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import TooLargeError
from .dfa import MAX_STATES, REJECT, Dfa, distinct_columns, minimize
from .nodes import Anchor, Characters, Choice, LookAhead, Node, Repeat, Sequence
from .ranges import LAST_CODE_POINT, Ranges
from .subsets import Edges, Moves, closures, edges, subsets

MAX_NODES = 6_000
Condition: TypeAlias = Anchor | LookAhead | None
START, END = Anchor("^"), Anchor("$")


class Nfa:
    """`moves[i]` are (code points, target); `jumps[i]` are (target, condition), which consume no character
    and are open where the condition holds."""

    def __init__(self) -> None:
        self.moves: list[list[tuple[Ranges, int]]] = []
        self.jumps: list[list[tuple[int, Condition]]] = []

    def node(self) -> int:
        if len(self.moves) >= MAX_NODES:
            raise TooLargeError(f"more than {MAX_NODES} positions in a regex")
        self.moves.append([])
        self.jumps.append([])
        return len(self.moves) - 1

    def move(self, source: int, ranges: Ranges, target: int) -> None:
        self.moves[source].append((ranges, target))

    def jump(self, source: int, target: int, condition: Condition = None) -> None:
        self.jumps[source].append((target, condition))

    def add(self, part: Node, start: int, end: int) -> None:
        """Adds the part of a regex between two nodes."""
        match part:
            case Characters(ranges):
                self.move(start, ranges, end)
            case Sequence(parts):
                for inner in parts:
                    following = self.node()
                    self.add(inner, start, following)
                    start = following
                self.jump(start, end)
            case Choice(branches):
                for branch in branches:
                    self.add(branch, start, end)
            case Repeat():
                self._repeat(part, start, end)
            case Anchor() | LookAhead():
                self.jump(start, end, part)

    @property
    def has_look_ahead(self) -> bool:
        return any(isinstance(condition, LookAhead) for jumps in self.jumps for _, condition in jumps)

    def _repeat(self, repeat: Repeat, start: int, end: int) -> None:
        for _ in range(repeat.least):
            start = self._add_part(repeat.part, start)
        if repeat.most is None:
            loop = self.node()
            self.jump(start, loop)
            self.add(repeat.part, loop, loop)
            self.jump(loop, end)
            return
        for _ in range(repeat.most - repeat.least):
            self.jump(start, end)
            start = self._add_part(repeat.part, start)
        self.jump(start, end)

    def _add_part(self, part: Node, start: int) -> int:
        """Adds the part of a regex behind a node. Returns the node after the part."""
        following = self.node()
        self.add(part, start, following)
        return following

    def determinize(self, start: int, end: int, *, at_start: bool) -> Dfa:
        """The automaton of the texts that lead from one node to the other, for jumps without look-ahead.
        `at_start`: see `look_ahead.determinize`."""
        anchors = (START,) if at_start else ()
        cuts, class_of_cut, takes = self._classes()
        sources = np.array([source for source, row in enumerate(self.moves) for _ in row], np.int32)
        targets = np.array([target for row in self.moves for _, target in row], np.int32)
        ends = self._find_reaching(end, END)
        place = np.full(len(self.moves), -1, np.int32)  # places of the end node and of nodes with moves
        kept = np.union1d(sources, np.flatnonzero(ends)).astype(np.int32)
        place[kept] = np.arange(len(kept))
        words = -(-len(kept) // 64) or 1
        later, which = np.unique(targets, return_inverse=True)
        moves = Moves(
            first=np.searchsorted(sources, np.append(kept, len(place))),
            takes=takes,
            leads_to=which.reshape(-1),
            reached=closures(self._edges(), later.astype(np.int32), place, words),
        )
        first = closures(self._edges(*anchors), np.array([start], np.int32), place, words)
        sets, transitions = subsets(first[0], moves, MAX_STATES + 1)
        if len(sets) > MAX_STATES:
            raise TooLargeError(f"more than {MAX_STATES} states in a string or number")
        is_end = np.zeros(64 * words, np.bool_)
        is_end[: len(kept)] = ends[kept]
        accepts = (sets & np.packbits(is_end, bitorder="little").view(np.uint64)).any(axis=1)
        accepts[0] = self._find_reaching(end, END, *anchors)[start]
        return minimize(Dfa(cuts, class_of_cut, transitions, np.where(accepts, 0, REJECT).astype(np.int32)))

    def _classes(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
        """The cuts, the class of each cut, and the classes that each move takes, [moves, classes]."""
        moves = [ranges for row in self.moves for ranges, _ in row]
        number = {ranges: position for position, ranges in enumerate(dict.fromkeys(moves))}
        ends = {end for ranges in number for low, high in ranges for end in (low, high + 1)}
        cuts = np.array(sorted({0, *ends} - {LAST_CODE_POINT + 1}), np.int32)
        takes = np.zeros((len(number), len(cuts)), np.bool_)
        for ranges, position in number.items():
            bounds = np.array(ranges, np.int32).reshape(-1)
            bounds[1::2] += 1
            takes[position] = np.searchsorted(bounds, cuts, "right") % 2
        columns, class_of_cut = distinct_columns(takes.astype(np.int32))
        of_move = np.array([number[ranges] for ranges in moves], np.int64)
        return cuts, class_of_cut.astype(np.int32), takes[:, columns][of_move]

    def _edges(self, *conditions: Anchor) -> Edges:
        """The jumps that are open at positions where these anchors hold."""
        jumps = self._list_passable(*conditions)
        return edges(len(self.moves), jumps[:, 0], jumps[:, 1])

    def _find_reaching(self, end: int, *conditions: Anchor) -> NDArray[np.bool_]:
        """The nodes [nodes] from which jumps lead to the end, where these anchors hold."""
        jumps = self._list_passable(*conditions)
        nodes = len(self.moves)
        every = np.arange(nodes, dtype=np.int32)
        back = edges(nodes, jumps[:, 1], jumps[:, 0])
        bits = closures(back, np.array([end], np.int32), every, -(-nodes // 64))
        return np.unpackbits(bits.view(np.uint8), bitorder="little")[:nodes].astype(np.bool_)

    def _list_passable(self, *conditions: Anchor) -> NDArray[np.int32]:
        """The jumps that can be passed at all, [jumps, 2]."""
        passable = [
            (source, target)
            for source, jumps in enumerate(self.jumps)
            for target, condition in jumps
            if condition is None or condition in conditions
        ]
        return np.array(passable, np.int32).reshape(-1, 2)
