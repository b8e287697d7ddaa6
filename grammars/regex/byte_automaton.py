"""Regexes as exact automata over bytes, independent of any vocabulary.

outlines-core builds an index over the 256 one-byte tokens. Alone, it prefers the leftmost
alternative and also tracks matches that begin later. Between two sentinels that no text contains it
accepts exactly the regex's language, in linear time for counted repetitions.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from outlines_core import Index, Vocabulary

from ...runtime.automaton_format import ACTION_COLUMNS
from ..errors import GrammarError, TooLargeError
from ..machine.stack_automaton import StackAutomaton

SENTINEL = "\U0010ffff"
MAX_STATES = 20_000
_END = 256


def compile_regex(regex: str) -> StackAutomaton:
    """An automaton that never uses its stack. `regex` has no anchors and matches whole texts (see
    `pattern.without_anchors`)."""
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
    order = _reachable(table, start)
    number = {state: position for position, state in enumerate(order)}
    dense = np.full((len(order), 256), -1, np.int32)
    accepting = np.zeros(len(order), np.bool_)
    for position, state in enumerate(order):
        for byte, target in table.get(state, {}).items():
            if byte != _END:
                dense[position, byte] = number[target]
        end = _walk(table, state, sentinel)
        accepting[position] = end is not None and index.is_final_state(end)
    return _compress(*_without_dead_ends(dense, accepting))


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


def _reachable(table: dict[int, dict[int, int]], start: int) -> list[int]:
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


def _without_dead_ends(
    transitions: NDArray[np.int32], accepting: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Drops the states that reach no accepting state: those of the closing sentinel."""
    alive = accepting
    while True:
        reaching = accepting | (alive[transitions] & (transitions >= 0)).any(axis=1)
        if (reaching == alive).all():
            break
        alive = reaching
    if not alive[0]:
        raise GrammarError("the regex matches no text at all")
    number = np.where(alive, np.cumsum(alive) - 1, -1)
    kept = np.where(transitions >= 0, number[transitions], -1)
    return kept[alive].astype(np.int32), accepting[alive]


def _compress(transitions: NDArray[np.int32], accepting: NDArray[np.bool_]) -> StackAutomaton:
    """The automaton with one class for all bytes that no state tells apart."""
    columns, class_of_byte = np.unique(transitions, axis=1, return_inverse=True)
    return StackAutomaton(
        start=0,
        class_of_byte=class_of_byte.reshape(256).astype(np.uint8),
        transitions=np.ascontiguousarray(columns),
        actions=np.zeros((0, ACTION_COLUMNS), np.int32),
        returns=np.zeros(0, np.int32),
        accepting=accepting,
        body_of_state=np.zeros(len(columns), np.int8),
        like_state=np.arange(len(columns), dtype=np.int32),
    )
