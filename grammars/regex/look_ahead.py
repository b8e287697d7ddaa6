"""Look-ahead in regexes: the automaton checks the look-ahead's condition on the rest of the text beside the
rest of the regex, as an intersection."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import cached_property
from typing import TypeAlias

from .dfa import DEAD, Dfa, complement
from .nfa import END, START, Nfa
from .nodes import LookAhead
from .ranges import EVERYTHING, Ranges

Asked: TypeAlias = "frozenset[tuple[int, int]]"
"""conditions on the rest of the text: numbers of look-aheads, each with the state of its automaton"""


def determinize(nfa: Nfa, start: int, end: int, *, at_start: bool = True) -> Dfa:
    """The automaton of the texts that lead from one node to the other. `at_start`: `^` holds before the
    first character."""
    if nfa.has_look_ahead:
        nfa, start, end = _Follower(nfa, end).follow(start, at_start=at_start)
    return nfa.determinize(start, end, at_start=at_start)


class _Asking:
    """The automaton of the texts that may follow a look-ahead."""

    def __init__(self, look: LookAhead, *, at_start: bool) -> None:
        nfa = Nfa()
        start, end = nfa.node(), nfa.node()
        nfa.move(end, EVERYTHING, end)
        nfa.add(look.part, start, end)
        dfa = determinize(nfa, start, end, at_start=at_start)
        self._dfa = complement(dfa) if look.is_negative else dfa
        self.is_possible = bool((self._dfa.labels >= 0).any())
        self.cuts: list[int] = self._dfa.cuts.tolist()
        self._class_of_cut: list[int] = self._dfa.class_of_cut.tolist()

    @cached_property
    def _rows(self) -> list[list[int]]:
        rows: list[list[int]] = self._dfa.transitions.tolist()
        return rows

    @cached_property
    def _satisfied(self) -> int:
        """The state in which every rest of the text satisfies the look-ahead, or `DEAD`."""
        own = (state for state, row in enumerate(self._rows) if self.may_end(state) and set(row) == {state})
        return next(own, DEAD)

    def may_end(self, state: int) -> bool:
        return bool(self._dfa.labels[state] >= 0)

    def is_satisfied(self, state: int) -> bool:
        return state == self._satisfied

    def after(self, state: int, code: int) -> int:
        return self._rows[state][self._class_of_cut[bisect_right(self.cuts, code) - 1]]


class _Follower:
    """Makes an automaton without look-ahead. Its nodes are the old ones with the conditions so far."""

    def __init__(self, nfa: Nfa, end: int) -> None:
        self._old, self._old_end = nfa, end
        self._new = Nfa()
        self._end = self._new.node()
        self._nodes: dict[tuple[int, Asked, bool], int] = {}
        self._pending: list[tuple[int, Asked, bool]] = []
        self._numbers: dict[tuple[LookAhead, bool], int] = {}
        self._asking: list[_Asking] = []

    def follow(self, start: int, *, at_start: bool) -> tuple[Nfa, int, int]:
        first = self._node(start, frozenset(), at_start)
        while self._pending:
            self._follow(*self._pending.pop())
        return self._new, first, self._end

    def _node(self, old: int, asked: Asked, at_start: bool) -> int:
        key = (old, asked, at_start)
        if key not in self._nodes:
            self._nodes[key] = self._new.node()
            self._pending.append(key)
        return self._nodes[key]

    def _follow(self, old: int, asked: Asked, at_start: bool) -> None:
        own = self._nodes[old, asked, at_start]
        if old == self._old_end and all(self._asking[number].may_end(state) for number, state in asked):
            self._new.jump(own, self._end)
        for target, condition in self._old.jumps[old]:
            if isinstance(condition, LookAhead):
                if (more := self._with(asked, condition, at_start)) is not None:
                    self._new.jump(own, self._node(target, more, at_start))
            elif condition != START or at_start:
                is_end = condition == END
                self._new.jump(own, self._node(target, asked, at_start), END if is_end else None)
        for ranges, target in self._old.moves[old]:
            for rest, taken in self._advance(asked, ranges):
                self._new.move(own, taken, self._node(target, rest, False))

    def _with(self, asked: Asked, look: LookAhead, at_start: bool) -> Asked | None:
        """The conditions after a look-ahead; None if no text satisfies them."""
        key = (look, at_start)
        if key not in self._numbers:
            self._numbers[key] = len(self._asking)
            self._asking.append(_Asking(look, at_start=at_start))
        number = self._numbers[key]
        if not self._asking[number].is_possible:
            return None
        return asked if self._asking[number].is_satisfied(0) else asked | {(number, 0)}

    def _advance(self, asked: Asked, ranges: Ranges) -> Iterable[tuple[Asked, Ranges]]:
        """The conditions after one of these code points, each with the code points that lead to them."""
        if not asked:
            return [(asked, ranges)]
        cuts = sorted({cut for number, _ in asked for cut in self._asking[number].cuts})
        found: dict[Asked, list[tuple[int, int]]] = {}
        for low, high in ranges:
            starts = [low, *cuts[bisect_right(cuts, low) : bisect_right(cuts, high)]]
            for first, following in zip(starts, [*starts[1:], high + 1], strict=True):
                rest = self._after(asked, first)
                if rest is not None:
                    found.setdefault(rest, []).append((first, following - 1))
        return [(rest, tuple(taken)) for rest, taken in found.items()]

    def _after(self, asked: Asked, code: int) -> Asked | None:
        """The conditions left after a code point; None if the code point breaks one."""
        rest = []
        for number, state in asked:
            asking = self._asking[number]
            after = asking.after(state, code)
            if after == DEAD:
                return None
            if not asking.is_satisfied(after):
                rest.append((number, after))
        return frozenset(rest)
