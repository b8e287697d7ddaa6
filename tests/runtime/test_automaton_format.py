"""The tables of automata in messages."""

from __future__ import annotations

import numpy as np
import pytest
from arbora.runtime.automaton_format import AutomatonTables, unpacked
from byte_grammars import nested
from msgspec import ValidationError, msgpack, structs
from stack_automata import random_grammar


@pytest.mark.parametrize(
    "tables", [nested(), random_grammar(1).tables, random_grammar(2, stack=False).tables]
)
def test_tables_travel_unchanged(tables: AutomatonTables) -> None:
    received = unpacked(tables.packed())
    for name in tables.__struct_fields__:
        before, after = getattr(tables, name), getattr(received, name)
        assert before.dtype == after.dtype and np.array_equal(before, after), name


def test_an_array_that_is_a_view_of_another_travels_too() -> None:
    wide = np.arange(12, dtype=np.int32).reshape(6, 2)
    received = unpacked(structs.replace(nested(), returns=wide[::2, 1]).packed())
    assert received.returns.tolist() == [1, 5, 9]


def test_tables_with_a_missing_array_are_an_error() -> None:
    with pytest.raises(ValidationError, match="length"):
        unpacked(msgpack.encode([]))
