"""Numbers that the automata's tables and kernels share."""

STACK_DEPTH = 32
"""return addresses that a row can hold; at the limit a push leads nowhere"""

NO_AUTOMATON = -1
"""the state of a row without a grammar: nothing is masked, and it stays"""
DEAD = 0
"""the state after bytes that the grammar doesn't allow: every token is masked, and it stays"""

PUSH, POP = 0, 1
"""kinds of actions"""

FIRST_TRANSITION, CLASS_MAP, MASK, CONTEXT_START, CONTEXT_COUNT, STATE_COLUMNS = range(6)
"""columns of a state: where its transitions begin, rows of the class maps and masks, its context tokens"""

STATE, DEPTH, STACK = range(3)
"""columns of a slot's registers; the stack takes the rest"""
REGISTERS = STACK + STACK_DEPTH
