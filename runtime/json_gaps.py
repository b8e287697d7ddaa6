"""White space between the tokens of JSON, where the reply chooses it.

A *gap* is a place where white space may stand: around a colon, after a comma, inside of brackets. The first
choice of each kind binds the rest of the reply. Two integers remember the choices, at the bottom of the
automaton's stack: the *style* (the choices made, and how much of an indentation is still missing), and the
*lines* (one bit for each open container, the innermost lowest: its members stand on lines of their own).

- A container has its members on lines of their own, or on the line of its bracket. The white space after its
  bracket decides that, for each container anew.
- On one line: none or one space after commas, and inside of the brackets of objects and of arrays.
- Around colons: none or one space, before and after.
- A new line is indented by one unit for each open container with lines. The unit is none to eight spaces or
  one tab; the first indented line decides.
"""

from __future__ import annotations

import numpy as np

UNKNOWN, NONE, SPACE = range(3)
"""values of a field of the style: no choice yet, no white space, one space"""
BEFORE_COLON, AFTER_COLON, AFTER_COMMA, IN_OBJECT, IN_ARRAY = range(0, 10, 2)
"""the lowest bit of each field"""
UNIT = 10
"""the lowest of four bits in the style that hold the unit: 0 if unknown, 1 + spaces, or `TAB`"""
TAB = 10
ONLY_LINES = 1 << 14
"""bit of the style: every container that has members has them on lines of their own"""
LEVEL = 15
"""the lowest of six bits in the style that hold the number of open containers with lines"""
LEFT = 21
"""the lowest of nine bits in the style that hold the spaces or tabs that the line's indentation lacks"""
MODEL_STYLE = 0
INDENTED_STYLE = (
    NONE << BEFORE_COLON
    | SPACE << AFTER_COLON
    | NONE << AFTER_COMMA
    | NONE << IN_OBJECT
    | NONE << IN_ARRAY
    | 3 << UNIT
    | ONLY_LINES
)

(
    NO_GAP,
    COLON,  # a colon directly after a name
    COLON_AFTER_SPACE,
    SPACE_BEFORE_COLON,
    COMMA,
    OPEN_OBJECT,
    OPEN_ARRAY,
    SPACE_AFTER_COLON,
    SPACE_AFTER_COMMA,
    SPACE_IN_OBJECT,
    SPACE_IN_ARRAY,
    UNIT_SPACE,  # a space of the first indentation, which decides the unit
    UNIT_TAB,
    INDENT_SPACE,  # a space of a later indentation
    INDENT_TAB,
    LINE,  # the line break after a comma
    FIRST_LINE,  # the line break after a bracket
    FIRST_LINE_OF_OBJECT,  # a line break where a space would have been the first in an object
    FIRST_LINE_OF_ARRAY,
    LAST_LINE,  # the line break before a closing bracket
    CLOSE_OBJECT,  # a closing bracket directly after a member
    CLOSE_ARRAY,
    SPACE_BEFORE_CLOSE_OBJECT,
    SPACE_BEFORE_CLOSE_ARRAY,
    LEAVE,  # a closing bracket after white space, or of an empty container
    LEAVE_OBJECT,  # `}` directly after `{`: the choice NONE, which `{` made for a first member, is forgotten
    LEAVE_ARRAY,
) = range(27)
"""what an action does with the reply's white space"""

PLAIN, INDENTED_BY_SPACES, INDENTED_BY_TABS, FIRST_INDENTED, SPACED, FREE, LINED, STARTED = range(8)
"""the ways that a gap may go on; a way is added to the target of the action. What comes next: no white space;
an indentation of spaces, of tabs, or the first one, whose unit is not known; one space; no white space or a
space; a line break; in a container that has just begun, no white space or a line break"""
AFTER_COLON_SPACED, AFTER_COLON_FREE = 1, 2
"""the ways `SPACED` and `FREE` after a colon, where there are no others but `PLAIN`"""
DEAD_WAY = -1
_COLONS, _OPENS = [COLON, COLON_AFTER_SPACE], [OPEN_OBJECT, OPEN_ARRAY]
_INDENTS = [INDENT_SPACE, INDENT_TAB, *range(LINE, LAST_LINE + 1)]
WAYS = np.ones(LEAVE_ARRAY + 1, np.int32)
"""for each gap the number of ways: of neighbouring states, beginning with the action's target"""
WAYS[_COLONS], WAYS[COMMA], WAYS[_OPENS], WAYS[_INDENTS] = 3, LINED + 1, STARTED + 1, FIRST_INDENTED + 1
WIDEST_WAY = np.zeros(LEAVE_ARRAY + 1, np.int32)
"""for each gap the way whose state allows everything that the states of its other ways allow"""
WIDEST_WAY[_COLONS], WIDEST_WAY[[COMMA, *_OPENS]], WIDEST_WAY[_INDENTS] = (
    AFTER_COLON_FREE,
    FREE,
    FIRST_INDENTED,
)


def pass_gap(gap: int, style: int, lines: int) -> tuple[int, int, int]:
    """Returns the way on, the style and the lines after an action with this gap. The way is `DEAD_WAY` if the
    reply's choices forbid the action's byte.

    One function without calls, which the CPU kernels compile as it is.
    """
    way = PLAIN
    if gap in (COLON, COLON_AFTER_SPACE):
        if gap == COLON and style >> BEFORE_COLON & 3 == SPACE:
            return DEAD_WAY, style, lines
        choice = style >> AFTER_COLON & 3
        if gap == COLON:
            style |= NONE << BEFORE_COLON
        if choice == UNKNOWN:
            style |= NONE << AFTER_COLON
            way = AFTER_COLON_FREE
        elif choice == SPACE:
            way = AFTER_COLON_SPACED
    elif gap == SPACE_BEFORE_COLON:
        if style >> BEFORE_COLON & 3 == NONE:
            return DEAD_WAY, style, lines
        style |= SPACE << BEFORE_COLON
    elif gap in (COMMA, OPEN_OBJECT, OPEN_ARRAY):
        field = AFTER_COMMA if gap == COMMA else IN_OBJECT if gap == OPEN_OBJECT else IN_ARRAY
        choice = style >> field & 3
        is_lined = lines & 1 if gap == COMMA else style & ONLY_LINES
        if gap != COMMA:
            lines <<= 1
        if is_lined:
            way = LINED
        elif choice == UNKNOWN:
            style |= NONE << field
            way = FREE
        elif choice == SPACE:
            way = SPACED
        elif gap != COMMA:
            way = STARTED
    elif gap <= SPACE_IN_ARRAY:  # a space that the reply chooses; before it, the field said NONE
        field = AFTER_COLON
        if gap == SPACE_AFTER_COMMA:
            field = AFTER_COMMA
        elif gap != SPACE_AFTER_COLON:
            field = IN_OBJECT if gap == SPACE_IN_OBJECT else IN_ARRAY
        style += (SPACE - NONE) << field
    elif gap in (UNIT_SPACE, UNIT_TAB):
        unit = style >> UNIT & 15
        if unit != 1 and (gap == UNIT_TAB or unit >= TAB - 1):
            return DEAD_WAY, style, lines
        style += (1 if gap == UNIT_SPACE else TAB - 1) << UNIT
    elif gap in (INDENT_SPACE, INDENT_TAB):
        style -= 1 << LEFT
        if style >> LEFT:
            way = INDENTED_BY_SPACES if gap == INDENT_SPACE else INDENTED_BY_TABS
    elif gap <= LAST_LINE:
        if gap >= FIRST_LINE and gap != LAST_LINE:
            if gap != FIRST_LINE:
                style &= ~(3 << (IN_OBJECT if gap == FIRST_LINE_OF_OBJECT else IN_ARRAY))
            lines |= 1
            style += 1 << LEVEL
        if not lines & 1:
            return DEAD_WAY, style, lines
        unit = style >> UNIT & 15
        level = (style >> LEVEL & 63) - (gap == LAST_LINE)
        if unit == UNKNOWN:
            style |= 1 << UNIT
            way = FIRST_INDENTED
        else:
            left = level if unit == TAB else level * (unit - 1)
            style |= left << LEFT
            if left:
                way = INDENTED_BY_TABS if unit == TAB else INDENTED_BY_SPACES
    elif gap >= LEAVE:
        if gap != LEAVE:
            style &= ~(3 << (IN_OBJECT if gap == LEAVE_OBJECT else IN_ARRAY))
        style -= (lines & 1) << LEVEL
        lines >>= 1
    else:
        field = IN_OBJECT if gap in (CLOSE_OBJECT, SPACE_BEFORE_CLOSE_OBJECT) else IN_ARRAY
        is_spaced = style >> field & 3 == SPACE
        if lines & 1 or is_spaced != (gap >= SPACE_BEFORE_CLOSE_OBJECT):
            return DEAD_WAY, style, lines
        if gap <= CLOSE_ARRAY:
            lines >>= 1
    return way, style, lines
