"""Numbers that the automata's tables and kernels share."""

STACK_DEPTH = 30
"""places up to which actions have room; beyond them they lead nowhere"""
STACK_PLACES = STACK_DEPTH + 2
"""places that a row has: calls may take the last two"""

NO_AUTOMATON = -1
"""the state of a row without a grammar: nothing is masked, and it stays"""
DEAD = 0
"""the state after bytes that the grammar doesn't allow: every token is masked, and it stays"""

PUSH, POP, CALL, COUNT, COUNT_CALL, DROP, OPEN, CLOSE, SEE, NEED, GO, FULL = range(12)
"""kinds of actions"""

SET_WORDS = 4
"""places of the stack that a set may take"""
WORD_NAMES = 31
"""names that each of them holds"""

KIND, TARGET, OPERAND, ROOM, NAMES = range(5)
"""columns of an action; the names of a set take the rest"""
ACTION_COLUMNS = NAMES + SET_WORDS
WORDS, FULL_ROWS, FIRST_FULL = range(NAMES, NAMES + 3)
"""columns of an action that opens a set, instead of names: its words, how many rows of names there are that
may have no room, and how far behind it the first is"""

ROW, DEFAULT, CLASS_MAP, MASK, SHARED, OWN, DECIDED, STATE_COLUMNS = range(8)
"""columns of a state: where its entries begin and which state has the others, rows of the class maps and
masks, two lists of tokens that change sides and one of those that the stack decides"""

START, TOKENS, OPENERS, ROOMY_DEPTH, LIST_COLUMNS = range(5)
"""columns of a list: where its tokens begin, how many there are, the openers that follow them, and the depth
up to which none of these can fill the stack"""

SPANS, TOKEN_BYTES, STATE_ROWS, CLASS_MAPS, ENTRIES, ACTIONS, RETURNS, LISTS, LIST_TOKENS, MASKS, TABLES = (
    range(11)
)
"""places of the tables' addresses, for kernels on CUDA; the first seven are `AutomatonPool.tables`"""

STATE, DEPTH, STACK = range(3)
"""columns of a slot's registers; the stack takes the rest"""
REGISTERS = STACK + STACK_PLACES
