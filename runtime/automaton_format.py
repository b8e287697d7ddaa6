"""The format of automata: the compiler writes it, the scheduler sends it and the kernels read it.

An automaton reads bytes. It has states, a stack, and for each state the tokens that may come next.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

DEAD = -1
"""the state after bytes that the grammar forbids: allows no token and never changes"""
NO_AUTOMATON = -2
"""the state of a row without a grammar: allows every token and never changes"""
NO_MASK = -1
"""number in place of a mask's: no token is allowed"""

STACK_DEPTH = 30
"""stack places that every action may fill"""
STACK_PLACES = STACK_DEPTH + 2
"""stack places of a row; only actions inside a string may fill the last two"""
SET_WORDS = 4
"""the largest number of stack places of a set of names"""
WORD_NAMES = 31
"""names in each of these stack places, one bit for each name"""

STYLE, LINES, GAP_PLACES = range(3)
"""the lowest stack places of an automaton whose replies choose their white space: see `json_gaps`"""

PUSH, POP, CALL, COUNT, COUNT_CALL, DROP, OPEN, CLOSE, SEE, NEED, HAVE, GO, FULL = range(13)
"""kinds of actions"""
KIND, TARGET, OPERAND, RESERVE, GAP, NAMES = range(6)
"""columns of an action; the last `SET_WORDS` columns are a set of names"""
ACTION_COLUMNS = NAMES + SET_WORDS
WORDS, FULL_ROWS, FIRST_FULL = range(NAMES, NAMES + 3)
"""Columns of an OPEN action in place of names: number of the set's stack places, number of FULL rows, and
distance in rows from the action to the first FULL row. A SEE action has WORDS too.
"""

ROW_START, DEFAULT, MASK, SHARED, OWN, DECIDED, STATE_COLUMNS = range(7)
"""columns of a state: the start of its entries; the state with its default entries; its mask; two lists of
tokens whose bits flip; the list of tokens that the stack decides"""
ENTRY, OWNER, ENTRY_COLUMNS = range(3)
"""columns of a place in the transition table: an entry, and the state that owns the place, or -1"""
START, TOKENS, OPENERS, SAFE_DEPTH, LIST_COLUMNS = range(5)
"""columns of a list: the start of its tokens; the number of tokens before the openers; the number of openers;
the depth of the stack up to which every opener fits"""


class AutomatonTables(msgspec.Struct, frozen=True, array_like=True, eq=False):
    """The tables of one automaton. All numbers count from the start of its own tables.

    **Transitions.** The entry of a state for a byte is at place
    states[state, ROW_START] + class_of_byte[byte] if the state owns that place. Otherwise it is the entry of
    state states[state, DEFAULT], found in the same way, and DEAD if that state does not own its place either.
    An entry is the next state, DEAD, or -2 - a for action a.

    **Actions** are (kind, target, operand, reserve, gap, *names). An action leads to DEAD if the stack lacks
    the values that the action reads, or if its depth plus `reserve` exceeds STACK_DEPTH. The reserve is the
    number of places that the action takes and the rest of the reply needs; -1 and -2 also count the last two
    places, for actions inside a string. If the gap is not 0, `json_gaps.pass_gap` changes the style and the
    lines, the two lowest places of the stack; the action leads to DEAD if they forbid its byte, and otherwise
    the way that they choose is added to its target. Then the action does as its kind says:

    - GO: go to target.
    - PUSH: push operand and go to target.
    - POP: pop r and go to returns[r + operand], which may be DEAD.
    - CALL: as PUSH, inside a string: for the rest of a code point, or for a count.
    - COUNT: subtract 1 from the top; go to operand if that leaves 0, else to target.
    - COUNT_CALL: subtract 1 from the top, push operand, or operand + 1 if that left 0, and go to target.
    - DROP: pop a count and go to target.

    An object whose properties come in any order has a return address on the stack, and above it the set of
    names seen so far. Name i is bit i % WORD_NAMES of word i // WORD_NAMES. The first word is on the top.

    - OPEN: push operand and a set, and go to target. The set has the names of those FULL rows whose reserve
      the stack lacks, so that no property begins whose value would not fit. The columns FULL_ROWS and
      FIRST_FULL say which rows these are.
    - SEE: DEAD if name `operand` is in the set, else add it and go to target.
    - NEED: DEAD if the set has all of `names`, else go to target.
    - HAVE: DEAD unless the set has all of `names`, else go to target.
    - CLOSE: DEAD unless the set has all of `names`; pop its `target` words, then do as POP.

    **Masks.** A state allows the tokens with a bit in its mask: bit i % 32 of word i // 32. The tokens of
    list SHARED flip their bits, then those of list OWN. Last, the stack decides each token of list DECIDED:
    the token is allowed if the row's own stack accepts its bytes. The last tokens of that list are openers.
    They need free places on the stack, so up to SAFE_DEPTH the mask is right about them. No token appears
    twice in a list, and list 0 is empty. A state in which the text may end allows end-of-sequence tokens.
    """

    class_of_byte: NDArray[np.uint8]  # [256]: the class of each byte
    states: NDArray[np.int32]  # [states, STATE_COLUMNS]: one row per state
    entries: NDArray[
        np.int32
    ]  # [places, ENTRY_COLUMNS]; there are enough places for all classes after every row start
    actions: NDArray[np.int32]  # [actions, ACTION_COLUMNS]: one row per action
    returns: NDArray[np.int32]
    masks: NDArray[np.int32]  # [masks, ceil(vocab / 32)]: packed bits of allowed tokens
    lists: NDArray[np.int32]  # [lists, LIST_COLUMNS]: one row per list of tokens
    list_tokens: NDArray[np.int32]

    @property
    def nbytes(self) -> int:
        arrays: list[NDArray[Any]] = [getattr(self, name) for name in self.__struct_fields__]
        return sum(array.nbytes for array in arrays)

    def packed(self) -> bytes:
        """The tables in the form in which they are sent to the model process."""
        return msgspec.msgpack.encode(self, enc_hook=pack_array)


def unpacked(data: bytes) -> AutomatonTables:
    """The tables of `AutomatonTables.packed`, whose arrays are read-only."""
    return _decoder.decode(data)


def pack_array(array: NDArray[Any]) -> object:
    """Converts an array for msgspec's encoders (`enc_hook`)."""
    return array.shape, np.ascontiguousarray(array).data


def unpack_array(kind: Any, packed: tuple[list[int], bytes]) -> NDArray[Any]:
    """Decodes an array for msgspec (`dec_hook`). `kind` is its annotation, such as NDArray[np.int32]."""
    _, dtype = get_args(kind)
    shape, data = packed
    return np.frombuffer(data, get_args(dtype)[0]).reshape(shape)


_decoder = msgspec.msgpack.Decoder(AutomatonTables, dec_hook=unpack_array)
