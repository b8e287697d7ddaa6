"""Packed transition tables hold what the dense ones did, in less space."""

from __future__ import annotations

import numpy as np
from arbora.grammars.machine.packed_rows import PackedRows, pack_rows
from arbora.runtime.automaton_format import OWNER
from hypothesis import given, settings
from hypothesis import strategies as st


def entry(rows: PackedRows, state: int, column: int) -> int:
    for owner in (state, int(rows.default_state[state])):
        found, owned_by = rows.entries[rows.row_starts[owner] + column].tolist()
        if owned_by == owner:
            return int(found)
    return -1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9999), st.integers(1, 30), st.integers(1, 12), st.sampled_from([0.02, 0.3, 0.9]))
def test_every_entry_is_found_again(seed: int, states: int, classes: int, share: float) -> None:
    chance = np.random.default_rng(seed)
    table = chance.integers(-9, states, (states, classes)).astype(np.int32)
    table[chance.random(table.shape) > share] = -1
    like = chance.integers(0, states, states).astype(np.int32)
    like = np.where(like[like] == like, like, np.arange(states, dtype=np.int32))
    rows = pack_rows(table, like)
    found = [[entry(rows, state, column) for column in range(classes)] for state in range(states)]
    assert found == table.tolist()


def test_rows_of_one_entry_take_hardly_more_than_that() -> None:
    table = np.full((500, 40), -1, np.int32)
    table[np.arange(500), np.random.default_rng(1).integers(0, 40, 500)] = 7
    rows = pack_rows(table, np.arange(500, dtype=np.int32))
    assert len(rows.entries) < 700


def test_a_row_that_is_like_another_keeps_only_the_differences() -> None:
    table = np.arange(4000, dtype=np.int32).reshape(100, 40) % 90
    table[1:] = table[0]
    table[np.arange(1, 100), 5] = -1
    rows = pack_rows(table, np.zeros(100, np.int32))
    assert (rows.entries[:, OWNER] >= 0).sum() == 40 + 99
