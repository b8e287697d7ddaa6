"""Constants that the automata's tables and kernels share."""

STACK_DEPTH = 30
"""stack places that actions may fill; an action that needs more is dead"""
STACK_PLACES = STACK_DEPTH + 2
"""stack places of a row; only calls may use the last two"""

NO_AUTOMATON = -1
"""the state of a row without a grammar: allows every token and never changes"""
DEAD = 0
"""the state after bytes that the grammar forbids: allows no token and never changes"""

PUSH, POP, CALL, COUNT, COUNT_CALL, DROP, OPEN, CLOSE, SEE, NEED, GO, FULL = range(12)
"""kinds of actions"""

SET_WORDS = 4
"""the most stack places of a set"""
WORD_NAMES = 31
"""names in each of these places"""

KIND, TARGET, OPERAND, ROOM, NAMES = range(5)
"""columns of an action; the last ones are a set of names"""
ACTION_COLUMNS = NAMES + SET_WORDS
WORDS, FULL_ROWS, FIRST_FULL = range(NAMES, NAMES + 3)
"""columns of an OPEN action, instead of names: words of the set, number of FULL rows, and how many rows
behind the action the first of them is"""

ROW, DEFAULT, CLASS_MAP, MASK, SHARED, OWN, DECIDED, STATE_COLUMNS = range(8)
"""columns of a state: start of its entries; the state with its default entries; row of the class maps; row of
the masks; two lists of tokens whose bits flip; the list of tokens that the stack decides"""

START, TOKENS, OPENERS, ROOMY_DEPTH, LIST_COLUMNS = range(5)
"""columns of a list: start of its tokens; number of tokens; number of openers after them; the depth up to
which every opener fits on the stack"""

SPANS, TOKEN_BYTES, STATE_ROWS, CLASS_MAPS, ENTRIES, ACTIONS, RETURNS, LISTS, LIST_TOKENS, MASKS, TABLES = (
    range(11)
)
"""number of table addresses, for kernels on CUDA; the first seven are `AutomatonPool.tables`"""

STATE, DEPTH, STACK = range(3)
"""columns of a slot's registers; the last ones are the stack"""
REGISTERS = STACK + STACK_PLACES
