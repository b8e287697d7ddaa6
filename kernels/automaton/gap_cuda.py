"""White space that the reply chooses, for the lanes of a CUDA program: see `runtime.json_gaps`."""

import triton
import triton.language as tl

from ...runtime import json_gaps

NONE = tl.constexpr(json_gaps.NONE)
SPACE = tl.constexpr(json_gaps.SPACE)
BEFORE_COLON = tl.constexpr(json_gaps.BEFORE_COLON)
AFTER_COLON = tl.constexpr(json_gaps.AFTER_COLON)
AFTER_COMMA = tl.constexpr(json_gaps.AFTER_COMMA)
IN_OBJECT = tl.constexpr(json_gaps.IN_OBJECT)
IN_ARRAY = tl.constexpr(json_gaps.IN_ARRAY)
UNIT = tl.constexpr(json_gaps.UNIT)
TAB = tl.constexpr(json_gaps.TAB)
ONLY_LINES = tl.constexpr(json_gaps.ONLY_LINES)
LEVEL = tl.constexpr(json_gaps.LEVEL)
LEFT = tl.constexpr(json_gaps.LEFT)
COLON = tl.constexpr(json_gaps.COLON)
COLON_AFTER_SPACE = tl.constexpr(json_gaps.COLON_AFTER_SPACE)
SPACE_BEFORE_COLON = tl.constexpr(json_gaps.SPACE_BEFORE_COLON)
COMMA = tl.constexpr(json_gaps.COMMA)
OPEN_OBJECT = tl.constexpr(json_gaps.OPEN_OBJECT)
OPEN_ARRAY = tl.constexpr(json_gaps.OPEN_ARRAY)
SPACE_AFTER_COLON = tl.constexpr(json_gaps.SPACE_AFTER_COLON)
SPACE_AFTER_COMMA = tl.constexpr(json_gaps.SPACE_AFTER_COMMA)
SPACE_IN_OBJECT = tl.constexpr(json_gaps.SPACE_IN_OBJECT)
SPACE_IN_ARRAY = tl.constexpr(json_gaps.SPACE_IN_ARRAY)
UNIT_SPACE = tl.constexpr(json_gaps.UNIT_SPACE)
UNIT_TAB = tl.constexpr(json_gaps.UNIT_TAB)
INDENT_SPACE = tl.constexpr(json_gaps.INDENT_SPACE)
INDENT_TAB = tl.constexpr(json_gaps.INDENT_TAB)
LINE = tl.constexpr(json_gaps.LINE)
FIRST_LINE = tl.constexpr(json_gaps.FIRST_LINE)
FIRST_LINE_OF_OBJECT = tl.constexpr(json_gaps.FIRST_LINE_OF_OBJECT)
FIRST_LINE_OF_ARRAY = tl.constexpr(json_gaps.FIRST_LINE_OF_ARRAY)
LAST_LINE = tl.constexpr(json_gaps.LAST_LINE)
CLOSE_OBJECT = tl.constexpr(json_gaps.CLOSE_OBJECT)
CLOSE_ARRAY = tl.constexpr(json_gaps.CLOSE_ARRAY)
SPACE_BEFORE_CLOSE_OBJECT = tl.constexpr(json_gaps.SPACE_BEFORE_CLOSE_OBJECT)
SPACE_BEFORE_CLOSE_ARRAY = tl.constexpr(json_gaps.SPACE_BEFORE_CLOSE_ARRAY)
LEAVE = tl.constexpr(json_gaps.LEAVE)
LEAVE_OBJECT = tl.constexpr(json_gaps.LEAVE_OBJECT)
LEAVE_ARRAY = tl.constexpr(json_gaps.LEAVE_ARRAY)
INDENTED_BY_SPACES = tl.constexpr(json_gaps.INDENTED_BY_SPACES)
INDENTED_BY_TABS = tl.constexpr(json_gaps.INDENTED_BY_TABS)
FIRST_INDENTED = tl.constexpr(json_gaps.FIRST_INDENTED)
SPACED = tl.constexpr(json_gaps.SPACED)
FREE = tl.constexpr(json_gaps.FREE)
LINED = tl.constexpr(json_gaps.LINED)
STARTED = tl.constexpr(json_gaps.STARTED)
AFTER_COLON_SPACED = tl.constexpr(json_gaps.AFTER_COLON_SPACED)
AFTER_COLON_FREE = tl.constexpr(json_gaps.AFTER_COLON_FREE)
DEAD_WAY = tl.constexpr(json_gaps.DEAD_WAY)
NONE_BEFORE_COLON = tl.constexpr(json_gaps.NONE << json_gaps.BEFORE_COLON)
SPACE_BEFORE = tl.constexpr(json_gaps.SPACE << json_gaps.BEFORE_COLON)
WIDER_UNIT = tl.constexpr(1 << json_gaps.UNIT)
TAB_UNIT = tl.constexpr(json_gaps.TAB - 1 << json_gaps.UNIT)
MAX_UNIT = tl.constexpr(json_gaps.TAB - 1)
ONE_LEFT = tl.constexpr(1 << json_gaps.LEFT)


@triton.jit
def pass_gap(gap, style, lines):
    """`json_gaps.pass_gap` for all lanes, int32 [lanes]; those with gap 0 keep style and lines."""
    is_in_object = (gap == OPEN_OBJECT) | (gap == SPACE_IN_OBJECT) | (gap == FIRST_LINE_OF_OBJECT)
    is_in_object |= (gap == CLOSE_OBJECT) | (gap == SPACE_BEFORE_CLOSE_OBJECT) | (gap == LEAVE_OBJECT)
    is_in_array = (gap == OPEN_ARRAY) | (gap == SPACE_IN_ARRAY) | (gap == FIRST_LINE_OF_ARRAY)
    is_in_array |= (gap == CLOSE_ARRAY) | (gap == SPACE_BEFORE_CLOSE_ARRAY) | (gap == LEAVE_ARRAY)
    field = tl.where((gap == COMMA) | (gap == SPACE_AFTER_COMMA), AFTER_COMMA, AFTER_COLON)
    field = tl.where(is_in_object, IN_OBJECT, tl.where(is_in_array, IN_ARRAY, field))
    choice, before = style >> field & 3, style >> BEFORE_COLON & 3

    after_name, opens = gap == COLON, (gap == OPEN_OBJECT) | (gap == OPEN_ARRAY)
    colon, closes = after_name | (gap == COLON_AFTER_SPACE), (gap == CLOSE_OBJECT) | (gap == CLOSE_ARRAY)
    spaced_close = (gap == SPACE_BEFORE_CLOSE_OBJECT) | (gap == SPACE_BEFORE_CLOSE_ARRAY)
    has_lines = (lines & 1) == 1
    dead = (after_name & (before == SPACE)) | ((gap == SPACE_BEFORE_COLON) & (before == NONE))
    dead |= (closes | spaced_close) & (has_lines | ((choice == SPACE) != spaced_close))

    chooses = colon | opens | (gap == COMMA)
    lined = (opens & (style & ONLY_LINES != 0)) | ((gap == COMMA) & has_lines)
    way = _way_of_choice(choice, colon, opens)
    way = tl.where(lined, LINED, tl.where(chooses, way, 0))
    first = (gap == FIRST_LINE) | (gap == FIRST_LINE_OF_OBJECT) | (gap == FIRST_LINE_OF_ARRAY)
    leaves, forgets = gap >= LEAVE, (gap > LEAVE) | (first & (gap != FIRST_LINE))
    left_level = tl.where(leaves, lines & 1, 0)
    style = tl.where(after_name, style | NONE_BEFORE_COLON, style)
    style = tl.where(gap == SPACE_BEFORE_COLON, style | SPACE_BEFORE, style)
    style = tl.where(chooses & (lined == 0) & (choice == 0), style | 1 << field, style)
    style = tl.where((gap >= SPACE_AFTER_COLON) & (gap <= SPACE_IN_ARRAY), style + (1 << field), style)
    style = tl.where(forgets, style & ~(3 << field), style)
    style += (tl.where(first, 1, 0) - left_level) << LEVEL
    lines = tl.where(opens, lines << 1, tl.where(first, lines | 1, lines))

    breaks = first | (gap == LINE) | (gap == LAST_LINE)
    dead |= breaks & ((lines & 1) == 0)
    way, style, lost = _indent(gap, breaks, way, style)
    lines = tl.where((closes & (dead == 0)) | leaves, lines >> 1, lines)
    return tl.where(dead | lost, DEAD_WAY, way), style, lines


@triton.jit
def _way_of_choice(choice, colon, opens):
    """The way that an earlier choice leaves, if the container is on one line."""
    spaced, free = tl.where(colon, AFTER_COLON_SPACED, SPACED), tl.where(colon, AFTER_COLON_FREE, FREE)
    return tl.where(choice == 0, free, tl.where(choice == SPACE, spaced, tl.where(opens, STARTED, 0)))


@triton.jit
def _indent(gap, breaks, way, style):
    """Way and style of lanes at a line break or inside an indentation, and which of these lanes are dead."""
    unit = style >> UNIT & 15
    level = (style >> LEVEL & 63) - tl.where(gap == LAST_LINE, 1, 0)
    left = tl.where(unit == TAB, level, level * (unit - 1))
    by_unit = tl.where(unit == TAB, INDENTED_BY_TABS, INDENTED_BY_SPACES)
    way = tl.where(breaks, tl.where(unit == 0, FIRST_INDENTED, tl.where(left == 0, 0, by_unit)), way)
    style = tl.where(breaks, style | tl.where(unit == 0, WIDER_UNIT, left << LEFT), style)

    widens, tabs = gap == UNIT_SPACE, gap == UNIT_TAB
    lost = (tabs & (unit != 1)) | (widens & (unit >= MAX_UNIT))
    style += tl.where(widens, WIDER_UNIT, tl.where(tabs, TAB_UNIT, 0))
    indents = (gap == INDENT_SPACE) | (gap == INDENT_TAB)
    style -= tl.where(indents, ONE_LEFT, 0)
    more = indents & (style >> LEFT != 0)
    way = tl.where(more, tl.where(gap == INDENT_SPACE, INDENTED_BY_SPACES, INDENTED_BY_TABS), way)
    return way, style, lost
