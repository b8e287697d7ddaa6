"""Regexes as exact automata over bytes, independent of any vocabulary.

outlines-core builds an index over the 256 one-byte tokens. Alone, it prefers the leftmost
alternative and also tracks matches that begin later. Between two sentinels that no text contains it
accepts exactly the regex's language, in linear time for counted repetitions.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from outlines_core import Index, Vocabulary

from ...runtime.automaton_format import ACTION_COLUMNS
from ..errors import GrammarError, TooLargeError
from ..machine.stack_automaton import StackAutomaton
from .dfa import DEAD, REJECT, distinct_columns, minimize_table

SENTINEL = "\U0010ffff"
MAX_STATES = 20_000
_END = 256


def compile_regex(regex: str) -> StackAutomaton:
    """Compiles a regex to an automaton that never uses its stack. `regex` has no anchors and matches whole
    texts (see `pattern.without_anchors`)."""
    try:
        index = Index(f"{SENTINEL}(?:{regex}){SENTINEL}", _one_byte_tokens())
    except ValueError as error:
        if "Found no transitions" in str(error):
            raise GrammarError("the regex has a part that matches no text") from None
        said = str(error).replace(f"{SENTINEL}(?:", "").replace(f"){SENTINEL}", "")
        raise GrammarError(f"the regex can't be compiled: {said}") from None
    table = index.get_transitions()
    sentinel = SENTINEL.encode()
    start = _walk(table, index.get_initial_state(), sentinel)
    if start is None:
        raise GrammarError("the regex matches no text at all")
    order = _find_reached(table, start)
    number = {state: position for position, state in enumerate(order)}
    dense = np.full((len(order), 256), DEAD, np.int32)
    labels = np.full(len(order), REJECT, np.int32)
    for position, state in enumerate(order):
        for byte, target in table.get(state, {}).items():
            if byte != _END:
                dense[position, byte] = number[target]
        end = _walk(table, state, sentinel)
        if end is not None and index.is_final_state(end):
            labels[position] = 0
    transitions, labels = minimize_table(dense, labels)  # drops the states of the closing sentinel
    if not len(labels):
        raise GrammarError("the regex matches no text at all")
    columns, class_of_byte = distinct_columns(transitions)
    return StackAutomaton(
        start=0,
        class_of_byte=class_of_byte.astype(np.uint8),
        transitions=np.take(transitions, columns, axis=1),
        actions=np.zeros((0, ACTION_COLUMNS), np.int32),
        returns=np.zeros(0, np.int32),
        accepting=labels >= 0,
        body_of_state=np.zeros(len(labels), np.int8),
        like_state=np.arange(len(labels), dtype=np.int32),
    )


@cache
def _one_byte_tokens() -> Vocabulary:
    return Vocabulary(_END, {bytes([byte]): [byte] for byte in range(256)})


def _walk(table: dict[int, dict[int, int]], state: int, text: bytes) -> int | None:
    for byte in text:
        following = table.get(state, {}).get(byte)
        if following is None:
            return None
        state = following
    return state


def _find_reached(table: dict[int, dict[int, int]], start: int) -> list[int]:
    order = [start]
    seen = {start}
    for state in order:
        for byte, target in table.get(state, {}).items():
            if byte != _END and target not in seen:
                seen.add(target)
                order.append(target)
        if len(order) > MAX_STATES:
            raise TooLargeError(f"more than {MAX_STATES} states")
    return order
