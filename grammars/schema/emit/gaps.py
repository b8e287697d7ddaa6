"""What stands between the members of containers: fixed separators, or white space that the reply chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from ....runtime import json_gaps as gaps
from ....runtime.automaton_format import GO, HAVE
from ....runtime.grammar_spec import FIXED, JsonSpacing
from ..solve.nodes import Container
from .tables import Tables

Fill: TypeAlias = Callable[[int, Mapping[int, int]], None]
"""gives a state the entries of a member's first byte, and these entries by byte"""
Leave: TypeAlias = Callable[[int], int]
"""returns the entry for the closing bracket, given its gap"""
STYLES = {"model": gaps.MODEL_STYLE, "indented": gaps.INDENTED_STYLE}
_SPACE, _TAB, _LINE, _COLON = b" \t\n:"


def spacing_of(whitespace: JsonSpacing, tables: Tables) -> Spacing:
    if isinstance(whitespace, str):
        style = STYLES.get(whitespace)
        return Separators(tables, FIXED[whitespace]) if style is None else ChosenGaps(tables, style)
    return Separators(tables, whitespace)


class Spacing(Protocol):
    bottom: tuple[int, ...]
    """the stack at the beginning, as in `StackAutomaton.bottom`"""
    states_of_value: int
    """the number of neighbouring states for a property's value; the first one is before its first byte"""
    states_of_start: int
    """the number of neighbouring states for a container's beginning"""
    comma_byte: int
    """the first byte between items"""

    def fill_value(self, value: int, fill: Fill) -> None:
        """Fills the states of a property's value."""

    def after_name(self, value: int) -> int:
        """The state after a name's closing quote, before its value."""

    def opening_gap(self, container: Container) -> int:
        """The gap of the action for the opening bracket."""

    def fill_start(self, start: int, container: Container, fill: Fill | None, leave: Leave | None) -> None:
        """Fills the states of a container's beginning. `fill` is None if it can have no members, `leave` if
        it must have some."""

    def comma(self, fill: Fill) -> tuple[int, int]:
        """The state after `comma_byte`, before a member, and the gap of the action for that byte."""

    def closing(self, container: Container, needed: tuple[int, ...], leave: Leave) -> Mapping[int, int]:
        """The entries that end a container after a member. `needed`: the names that it must have."""


class Separators:
    """Fixed texts after each item and after each name."""

    bottom: tuple[int, ...] = ()
    states_of_value = states_of_start = 1

    def __init__(self, tables: Tables, separators: tuple[str, str]) -> None:
        self._tables = tables
        self._comma, self._colon = (separator.encode() for separator in separators)
        self.comma_byte = self._comma[0]

    def fill_value(self, value: int, fill: Fill) -> None:
        fill(value, {})

    def after_name(self, value: int) -> int:
        return self._tables.chain(self._colon, value)

    def opening_gap(self, container: Container) -> int:
        return gaps.NO_GAP

    def fill_start(self, start: int, container: Container, fill: Fill | None, leave: Leave | None) -> None:
        closing = {} if leave is None else {closing_byte(container): leave(gaps.NO_GAP)}
        if fill is None:
            self._tables.fill(start, closing)
        else:
            fill(start, closing)

    def comma(self, fill: Fill) -> tuple[int, int]:
        state = self._tables.states(1)
        fill(state, {})
        return self._tables.chain(self._comma[1:], state), gaps.NO_GAP

    def closing(self, container: Container, needed: tuple[int, ...], leave: Leave) -> Mapping[int, int]:
        return {closing_byte(container): leave(gaps.NO_GAP)}


class ChosenGaps:
    """White space that the reply chooses (see `runtime.json_gaps`). The states of a place stand side by side,
    in the order of the ways that its gap may go on."""

    states_of_value = gaps.AFTER_COLON_FREE + 1
    states_of_start = gaps.STARTED + 1
    comma_byte = ord(",")

    def __init__(self, tables: Tables, style: int) -> None:
        self.bottom: tuple[int, ...] = (style, 0)
        self._tables = tables
        self._names: dict[int, int] = {}
        self._ends: dict[tuple[int, int], int] = {}

    def fill_value(self, value: int, fill: Fill) -> None:
        fill(value, {})
        self._tables.fill(value + gaps.AFTER_COLON_SPACED, {_SPACE: value})
        fill(value + gaps.AFTER_COLON_FREE, {_SPACE: self._go(value, gaps.SPACE_AFTER_COLON)})

    def after_name(self, value: int) -> int:
        if value not in self._names:
            spaced = self._tables.state({_COLON: self._go(value, gaps.COLON_AFTER_SPACE)})
            entries = {
                _COLON: self._go(value, gaps.COLON),
                _SPACE: self._go(spaced, gaps.SPACE_BEFORE_COLON),
            }
            self._names[value] = self._tables.state(entries)
        return self._names[value]

    def opening_gap(self, container: Container) -> int:
        return gaps.OPEN_ARRAY if container.is_array else gaps.OPEN_OBJECT

    def fill_start(self, start: int, container: Container, fill: Fill | None, leave: Leave | None) -> None:
        if container.is_array:
            space, line, empty = gaps.SPACE_IN_ARRAY, gaps.FIRST_LINE_OF_ARRAY, gaps.LEAVE_ARRAY
        else:
            space, line, empty = gaps.SPACE_IN_OBJECT, gaps.FIRST_LINE_OF_OBJECT, gaps.LEAVE_OBJECT
        closing = {} if leave is None else {closing_byte(container): leave(gaps.LEAVE)}
        free = {} if leave is None else {closing_byte(container): leave(empty)}
        if fill is None:
            for way in range(self.states_of_start):
                self._tables.fill(start + way, free if way == gaps.FREE else closing)
            return
        first = self._tables.states(gaps.FIRST_INDENTED + 1)  # the states after white space, before a member
        self._fill_lines(first, fill, {})
        first_line = {_LINE: self._go(first, gaps.FIRST_LINE)}
        fill(start, closing)  # unreachable: only the depth guard reads it, for all ways of the bracket
        self._tables.fill(start + gaps.SPACED, {_SPACE: first, **first_line, **closing})
        fill(start + gaps.FREE, {_SPACE: self._go(first, space), _LINE: self._go(first, line), **free})
        self._tables.fill(start + gaps.LINED, {**first_line, **closing})
        fill(start + gaps.STARTED, {**first_line, **closing})

    def comma(self, fill: Fill) -> tuple[int, int]:
        first = self._tables.states(gaps.LINED + 1)
        line = {_LINE: self._go(first, gaps.LINE)}
        self._fill_lines(first, fill, {})
        self._tables.fill(first + gaps.SPACED, {_SPACE: first})
        fill(first + gaps.FREE, {_SPACE: self._go(first, gaps.SPACE_AFTER_COMMA), **line})
        self._tables.fill(first + gaps.LINED, line)
        return first, gaps.COMMA

    def closing(self, container: Container, needed: tuple[int, ...], leave: Leave) -> Mapping[int, int]:
        kind = HAVE if any(needed) else GO
        end = self._end(closing_byte(container), leave(gaps.LEAVE))
        if container.is_array:
            direct, spaced = gaps.CLOSE_ARRAY, gaps.SPACE_BEFORE_CLOSE_ARRAY
        else:
            direct, spaced = gaps.CLOSE_OBJECT, gaps.SPACE_BEFORE_CLOSE_OBJECT
        return {
            closing_byte(container): leave(direct),
            _SPACE: self._tables.action(kind, end, 0, needed, gap=spaced),
            _LINE: self._tables.action(kind, end, 0, needed, gap=gaps.LAST_LINE),
        }

    def _end(self, byte: int, leave: int) -> int:
        """The states before a closing bracket, after white space."""
        if (byte, leave) not in self._ends:
            first = self._ends[byte, leave] = self._tables.states(gaps.FIRST_INDENTED + 1)
            self._fill_lines(first, lambda state, more: self._tables.fill(state, {byte: leave, **more}), {})
        return self._ends[byte, leave]

    def _fill_lines(self, first: int, fill: Fill, more: Mapping[int, int]) -> None:
        """Fills the states for plain text and for the kinds of indentation."""
        fill(first, more)
        indents = (
            (gaps.INDENTED_BY_SPACES, _SPACE, gaps.INDENT_SPACE),
            (gaps.INDENTED_BY_TABS, _TAB, gaps.INDENT_TAB),
        )
        for way, byte, gap in indents:
            self._tables.fill(first + way, {byte: self._go(first, gap)})
        again = first + gaps.FIRST_INDENTED
        units = {_SPACE: self._go(again, gaps.UNIT_SPACE), _TAB: self._go(again, gaps.UNIT_TAB)}
        fill(again, {**units, **more})

    def _go(self, target: int, gap: int) -> int:
        return self._tables.action(GO, target, 0, gap=gap)


def closing_byte(container: Container) -> int:
    return ord("]") if container.is_array else ord("}")
