"""Constants of the pool, in addition to those of `automaton_format`."""

from ...runtime.automaton_format import STACK_PLACES

STATE, DEPTH, GRAMMAR, STACK = range(4)
"""columns of a slot's registers: the state as its grammar numbers it, the depth of the stack, the grammar's
row of GRAMMARS, and the stack"""
REGISTERS = STACK + STACK_PLACES

CLASS_MAP, STATE_0, ENTRY_0, ACTION_0, RETURN_0, MASK_0, LIST_0, TOKEN_0, GRAMMAR_COLUMNS = range(9)
"""columns of a grammar: the row of its class map, and where each of its tables begins in the pool's"""

NO_TOKENS = 0
"""index of the pool's mask that allows no token: for dead rows, and the base of states without a mask"""

(
    SPANS,
    TOKEN_BYTES,
    GRAMMARS,
    CLASS_MAPS,
    STATES,
    ENTRIES,
    ACTIONS,
    RETURNS,
    MASKS,
    LISTS,
    LIST_TOKENS,
    TABLES,
) = range(12)
"""the pool's tables, in the order of `PoolTables`"""
