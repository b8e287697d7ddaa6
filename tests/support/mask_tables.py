"""The masks of tables read as plain sets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from arbora.runtime.automaton_format import DECIDED, MASK, NO_MASK, OWN, SHARED, AutomatonTables


class StateMask(NamedTuple):
    """`allowed` holds what the state alone allows, `openers` among them; the stack decides on `undecided`."""

    allowed: set[int]
    undecided: set[int]
    openers: set[int]


def state_mask(tables: AutomatonTables, state: int) -> StateMask:
    columns = tables.states[state]
    allowed = mask_bits(tables, state)
    for number in columns[[SHARED, OWN]]:
        tokens, openers = listed(tables, number)
        assert not openers and len(set(tokens)) == len(tokens)
        allowed ^= set(tokens)
    undecided, openers = listed(tables, columns[DECIDED])
    return StateMask(allowed - set(undecided), set(undecided), set(openers))


def mask_bits(tables: AutomatonTables, state: int) -> set[int]:
    number = tables.states[state, MASK]
    if number == NO_MASK:
        return set()
    return set(np.flatnonzero(np.unpackbits(tables.masks[number].view(np.uint8), bitorder="little")).tolist())


def listed(tables: AutomatonTables, number: int) -> tuple[list[int], list[int]]:
    """The tokens of a list before its openers, and the openers."""
    start, tokens, openers, _ = tables.lists[number].tolist()
    both = tables.list_tokens[start : start + tokens + openers].tolist()
    return both[:tokens], both[tokens:]
