"""The pool's tables, for kernels that get their addresses."""

import numba
import numpy as np

from ...runtime.automaton_format import ACTION_COLUMNS, ENTRY_COLUMNS, LIST_COLUMNS, STATE_COLUMNS
from ..common.jit import inlined
from ..common.numba_tools import pointer
from .layout import (
    ACTIONS,
    CLASS_MAPS,
    ENTRIES,
    GRAMMAR_COLUMNS,
    GRAMMARS,
    LIST_TOKENS,
    LISTS,
    MASKS,
    RETURNS,
    SPANS,
    STATES,
    TOKEN_BYTES,
)
from .rows import PoolTables

MANY = 1 << 31
"""more than the rows of any table"""
_INT, _BYTE = np.int32(0), np.uint8(0)


@inlined
def tables_at(addresses, words):
    """The `PoolTables` at these addresses, int64 [TABLES]; their lengths are not known. words: of a mask"""
    return PoolTables(
        _table(addresses[SPANS], _INT, 2),
        numba.carray(pointer(addresses[TOKEN_BYTES], _BYTE), (MANY,)),
        _table(addresses[GRAMMARS], _INT, GRAMMAR_COLUMNS),
        _table(addresses[CLASS_MAPS], _BYTE, 256),
        _table(addresses[STATES], _INT, STATE_COLUMNS),
        _table(addresses[ENTRIES], _INT, ENTRY_COLUMNS),
        _table(addresses[ACTIONS], _INT, ACTION_COLUMNS),
        numba.carray(pointer(addresses[RETURNS], _INT), (MANY,)),
        _table(addresses[MASKS], _INT, words),
        _table(addresses[LISTS], _INT, LIST_COLUMNS),
        numba.carray(pointer(addresses[LIST_TOKENS], _INT), (MANY,)),
    )


@inlined
def _table(address, kind, columns):
    return numba.carray(pointer(address, kind), (MANY, columns))
