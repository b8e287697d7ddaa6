# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""What automata's actions do to the stacks of many lanes, on CUDA. `Tables` says what the actions are."""

import triton
import triton.language as tl

from . import layout

PUSH = tl.constexpr(layout.PUSH)
POP = tl.constexpr(layout.POP)
CALL = tl.constexpr(layout.CALL)
COUNT = tl.constexpr(layout.COUNT)
COUNT_CALL = tl.constexpr(layout.COUNT_CALL)
DROP = tl.constexpr(layout.DROP)
OPEN = tl.constexpr(layout.OPEN)
CLOSE = tl.constexpr(layout.CLOSE)
SEE = tl.constexpr(layout.SEE)
NEED = tl.constexpr(layout.NEED)
GO = tl.constexpr(layout.GO)
DEAD = tl.constexpr(layout.DEAD)
STACK_DEPTH = tl.constexpr(layout.STACK_DEPTH)
STACK_PLACES = tl.constexpr(layout.STACK_PLACES)


@triton.jit
def act(acts, entry, depth, stack, actions, returns):
    """State, depth and stack after what the lanes that act do; the entries of the others are their states.

    entry, depth: int32 [lanes]; stack: int32 [lanes, STACK_PLACES], meaningless from depth on
    """
    action = actions + 4 * (-1 - entry)
    kind = tl.load(action, mask=acts, other=POP)
    target, operand = tl.load(action + 1, mask=acts, other=0), tl.load(action + 2, mask=acts, other=0)
    room = tl.load(action + 3, mask=acts, other=0)
    level = tl.arange(0, STACK_PLACES)[None, :]
    top = tl.sum(tl.where(level == depth[:, None] - 1, stack, 0), axis=1)
    under = tl.sum(tl.where(level == depth[:, None] - 2, stack, 0), axis=1)
    growth = _growth(kind)
    left = _top_after(kind, operand, top)
    alive = acts & (depth + room <= STACK_DEPTH) & (depth >= _read(kind))
    alive &= _set_allows(kind, target, operand, top)

    back = kind == POP
    back |= kind == CLOSE
    base = tl.where(kind == CLOSE, under, top)
    returned = tl.load(returns + base + operand, mask=alive & back, other=DEAD)
    went = tl.where((kind == COUNT) & (left == 0), operand, target)
    state = tl.where(alive, tl.where(back, returned, went), DEAD)

    pushed = operand + ((kind == COUNT_CALL) & (left == 0)).to(tl.int32)
    stack = tl.where(level == depth[:, None] - 1, left[:, None], stack)
    stack = tl.where(level == depth[:, None], pushed[:, None], stack)
    stack = tl.where(level == depth[:, None] + 1, 0, stack)
    return tl.where(acts, state, entry), depth + tl.where(alive, growth, 0), stack


@triton.jit
def _growth(kind):
    """Places that an action takes; less than 0 for those that it gives back."""
    growth = tl.where((kind == PUSH) | (kind == CALL) | (kind == COUNT_CALL), 1, 0)
    growth = tl.where(kind == OPEN, 2, growth)
    growth = tl.where((kind == POP) | (kind == DROP), -1, growth)
    return tl.where(kind == CLOSE, -2, growth)


@triton.jit
def _read(kind):
    """Places that an action looks at."""
    blind = (kind == PUSH) | (kind == OPEN) | (kind == CALL) | (kind == GO)
    return tl.where(blind, 0, tl.where(kind == CLOSE, 2, 1))


@triton.jit
def _set_allows(kind, target, operand, seen):
    """False where a set on the top refuses."""
    repeats = (kind == SEE) & ((seen >> (operand & 31) & 1) == 1)
    exhausted = (kind == NEED) & ((seen & operand) == operand)
    incomplete = (kind == CLOSE) & ((seen & target) != target)
    return (repeats | exhausted | incomplete) == 0


@triton.jit
def _top_after(kind, operand, top):
    counted = tl.where((kind == COUNT) | (kind == COUNT_CALL), top - 1, top)
    return tl.where(kind == SEE, top | (1 << (operand & 31)), counted)
