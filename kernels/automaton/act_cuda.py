"""Applies automata's actions to the stacks of many lanes on CUDA. `AutomatonTables` describes actions."""

import triton
import triton.language as tl

from ...runtime import automaton_format
from .gap_cuda import DEAD_WAY, pass_gap

PUSH = tl.constexpr(automaton_format.PUSH)
POP = tl.constexpr(automaton_format.POP)
CALL = tl.constexpr(automaton_format.CALL)
COUNT = tl.constexpr(automaton_format.COUNT)
COUNT_CALL = tl.constexpr(automaton_format.COUNT_CALL)
DROP = tl.constexpr(automaton_format.DROP)
OPEN = tl.constexpr(automaton_format.OPEN)
CLOSE = tl.constexpr(automaton_format.CLOSE)
SEE = tl.constexpr(automaton_format.SEE)
NEED = tl.constexpr(automaton_format.NEED)
HAVE = tl.constexpr(automaton_format.HAVE)
ACTION_COLUMNS = tl.constexpr(automaton_format.ACTION_COLUMNS)
KIND = tl.constexpr(automaton_format.KIND)
TARGET = tl.constexpr(automaton_format.TARGET)
OPERAND = tl.constexpr(automaton_format.OPERAND)
GAP = tl.constexpr(automaton_format.GAP)
NAMES = tl.constexpr(automaton_format.NAMES)
WORDS = tl.constexpr(automaton_format.WORDS)
FULL_ROWS = tl.constexpr(automaton_format.FULL_ROWS)
FIRST_FULL = tl.constexpr(automaton_format.FIRST_FULL)
RESERVE = tl.constexpr(automaton_format.RESERVE)
SET_WORDS = tl.constexpr(automaton_format.SET_WORDS)
WORD_NAMES = tl.constexpr(automaton_format.WORD_NAMES)
GO = tl.constexpr(automaton_format.GO)
DEAD = tl.constexpr(automaton_format.DEAD)
STACK_DEPTH = tl.constexpr(automaton_format.STACK_DEPTH)
STACK_PLACES = tl.constexpr(automaton_format.STACK_PLACES)
STYLE = tl.constexpr(automaton_format.STYLE)
LINES = tl.constexpr(automaton_format.LINES)


@triton.jit
def act(acts, entry, depth, stack, actions, returns):
    """Applies each lane's action. Returns all lanes' state, depth and stack. The entry of a lane without an
    action is its next state.

    entry, depth: int32 [lanes]; stack: int32 [lanes, STACK_PLACES], valid up to depth
    """
    action = actions + ACTION_COLUMNS * (-2 - entry)
    kind = tl.load(action + KIND, mask=acts, other=POP)
    target = tl.load(action + TARGET, mask=acts, other=0)
    operand = tl.load(action + OPERAND, mask=acts, other=0)
    reserve = tl.load(action + RESERVE, mask=acts, other=0)
    level = tl.arange(0, STACK_PLACES)[None, :]
    name = tl.where(kind == SEE, operand, 0)
    changed = depth - 1 - name // WORD_NAMES
    top = _at(stack, changed)
    opens, closes = acts & (kind == OPEN), kind == CLOSE
    words = tl.load(action + WORDS, mask=opens, other=0)
    words = tl.where(closes, target, words)
    left = _place_after(kind, name, top)
    alive = acts & (depth + reserve <= STACK_DEPTH) & (depth >= _read(kind, words))
    alive &= _set_allows(acts, kind, name, top, action, depth, stack)

    base = tl.where(closes, _at(stack, depth - 1 - words), top)
    returned = tl.load(returns + base + operand, mask=alive & ((kind == POP) | closes), other=DEAD)
    went = tl.where((kind == COUNT) & (left == 0), operand, target)
    state = tl.where(alive, tl.where((kind == POP) | closes, returned, went), DEAD)

    pushed = operand + ((kind == COUNT_CALL) & (left == 0)).to(tl.int32)
    stack = tl.where(level == changed[:, None], left[:, None], stack)
    stack = tl.where(level == depth[:, None], pushed[:, None], stack)
    if tl.max(opens.to(tl.int32)) > 0:
        stack = _with_set(opens, words, entry, depth, stack, actions)
    depth += tl.where(alive, _growth(kind, words), 0)
    gap = tl.load(action + GAP, mask=alive, other=0)
    if tl.max(gap) > 0:  # placed after the other cases, so that fewer values take registers at once
        way, style, lines = pass_gap(gap, _at(stack, gap * 0 + STYLE), _at(stack, gap * 0 + LINES))
        state = tl.where((way == DEAD_WAY) | (state == DEAD), DEAD, state + way)
        stack = tl.where((level == STYLE) & (gap > 0)[:, None], style[:, None], stack)
        stack = tl.where((level == LINES) & (gap > 0)[:, None], lines[:, None], stack)
    return tl.where(acts, state, entry), depth, stack


@triton.jit
def _at(stack, place):
    """The value of each lane's stack at a place; 0 beyond its depth."""
    level = tl.arange(0, STACK_PLACES)[None, :]
    return tl.sum(tl.where(level == place[:, None], stack, 0), axis=1)


@triton.jit
def _with_set(opens, words, entry, depth, stack, actions):
    """Opens a set in the lanes whose action opens one: writes it above the place that the action pushes. It
    begins with the names whose values do not fit. Returns the stacks.
    """
    action = actions + ACTION_COLUMNS * (-2 - entry)
    level = tl.arange(0, STACK_PLACES)[None, :]
    for word in tl.static_range(SET_WORDS):
        names = _full_names(opens & (word < words), word, action, depth)
        is_there = (level == (depth + words - word)[:, None]) & (opens & (word < words))[:, None]
        stack = tl.where(is_there, names[:, None], stack)
    return stack


@triton.jit
def _full_names(opens, word, action, depth):
    """A word of bits: the names whose values do not fit on the stack."""
    rows = tl.load(action + FULL_ROWS, mask=opens, other=0)
    row = action + ACTION_COLUMNS * tl.load(action + FIRST_FULL, mask=opens, other=0)
    names = tl.zeros_like(depth)
    for number in range(tl.max(rows)):
        lacks = opens & (number < rows)
        lacks &= depth + tl.load(row + RESERVE, mask=lacks, other=0) > STACK_DEPTH
        names |= tl.load(row + NAMES + word, mask=lacks, other=0)
        row += ACTION_COLUMNS
    return names


@triton.jit
def _growth(kind, words):
    """By how much an action changes the depth of the stack."""
    growth = tl.where((kind == PUSH) | (kind == CALL) | (kind == COUNT_CALL), 1, 0)
    growth = tl.where(kind == OPEN, 1 + words, growth)
    growth = tl.where((kind == POP) | (kind == DROP), -1, growth)
    return tl.where(kind == CLOSE, -1 - words, growth)


@triton.jit
def _read(kind, words):
    """The number of stack places that an action reads."""
    blind = (kind == PUSH) | (kind == OPEN) | (kind == CALL) | (kind == GO)
    return tl.where(blind, 0, tl.where(kind == CLOSE, 1 + words, 1))


@triton.jit
def _set_allows(acts, kind, name, seen, action, depth, stack):
    """Whether the set on top of the stack allows the action; `seen` is the set's word with the name."""
    asks = acts & ((kind == NEED) | (kind == HAVE) | (kind == CLOSE))
    lacking = tl.zeros_like(depth)
    for word in tl.static_range(SET_WORDS):
        names = tl.load(action + NAMES + word, mask=asks, other=0)
        lacking |= names & ~_at(stack, depth - 1 - word)
    repeats = (kind == SEE) & ((seen >> (name % WORD_NAMES) & 1) == 1)
    exhausted = (kind == NEED) & (lacking == 0)
    incomplete = ((kind == CLOSE) | (kind == HAVE)) & (lacking != 0)
    return (repeats | exhausted | incomplete) == 0


@triton.jit
def _place_after(kind, name, place):
    """The new value of the stack place that an action changes."""
    counted = tl.where((kind == COUNT) | (kind == COUNT_CALL), place - 1, place)
    return tl.where(kind == SEE, place | (1 << (name % WORD_NAMES)), counted)
