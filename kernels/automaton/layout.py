"""Numbers that the automata's tables and kernels share."""

STACK_DEPTH = 30
"""places up to which a row may push or open; beyond them both lead nowhere"""
STACK_PLACES = STACK_DEPTH + 2
"""places that a row has: calls may take the last two"""

NO_AUTOMATON = -1
"""the state of a row without a grammar: nothing is masked, and it stays"""
DEAD = 0
"""the state after bytes that the grammar doesn't allow: every token is masked, and it stays"""

PUSH, POP, CALL, COUNT, COUNT_CALL, DROP, OPEN, CLOSE, SEE, NEED = range(10)
"""kinds of actions"""

(
    FIRST_TRANSITION,
    CLASS_MAP,
    MASK,
    SHARED_START,
    SHARED_COUNT,
    OWN_START,
    OWN_COUNT,
    DECIDED_START,
    DECIDED_COUNT,
    OPENER_COUNT,
    ROOMY_DEPTH,
    STATE_COLUMNS,
) = range(12)
"""columns of a state: where its transitions begin, rows of the class maps and masks, its lists of tokens that
change sides and of those that the stack decides, the openers that follow these, and the depth up to which no
opener can fill the stack"""

STATE, DEPTH, STACK = range(3)
"""columns of a slot's registers; the stack takes the rest"""
REGISTERS = STACK + STACK_PLACES
