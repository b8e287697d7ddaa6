"""Mask tables read as plain sets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from arbora.grammars.masks.stack import EMPTY, MaskTables


class StateMask(NamedTuple):
    """`allowed` holds what the state alone allows, `openers` among them; the stack decides on `undecided`."""

    allowed: set[int]
    undecided: set[int]
    openers: set[int]


def state_mask(masks: MaskTables, state: int) -> StateMask:
    shared, own, decided = masks.lists_of_state[state].tolist()
    tokens = mask_bits(masks, state)
    for tokens_apart in (listed(masks, shared), listed(masks, own)):
        assert len(set(tokens_apart)) == len(tokens_apart)
        tokens ^= set(tokens_apart)
    by_stack = listed(masks, decided)
    undecided = set(by_stack[: len(by_stack) - int(masks.opener_counts[decided])])
    return StateMask(tokens - undecided, undecided, set(by_stack) - undecided)


def mask_bits(masks: MaskTables, state: int) -> set[int]:
    number = int(masks.mask_of_state[state])
    if number == EMPTY:
        return set()
    return set(np.flatnonzero(np.unpackbits(masks.masks[number].view(np.uint8), bitorder="little")).tolist())


def listed(masks: MaskTables, number: int) -> list[int]:
    tokens = masks.list_tokens[masks.list_offsets[number] : masks.list_offsets[number + 1]]
    return [int(token) for token in tokens]
