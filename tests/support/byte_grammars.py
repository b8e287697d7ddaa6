"""A vocabulary of single bytes, and grammars over it that are made by hand."""

import numpy as np
from arbora.runtime.automaton_format import POP, PUSH, AutomatonTables
from arbora.runtime.vocabulary import Vocabulary, build_vocabulary
from checkpoints import VOCAB_SIZE
from stack_automata import Lists, tables

WORDS = -(-VOCAB_SIZE // 32)
EOS = 257


def byte_vocabulary() -> Vocabulary:
    """Token i < 256 is byte i; the rest are special."""
    tokens = [bytes([i]) if i < 256 else b"" for i in range(VOCAB_SIZE)]
    return build_vocabulary(tokens, [i >= 256 for i in range(VOCAB_SIZE)], (EOS,))


def bits(allowed: list[int]) -> bytes:
    flags = np.zeros(WORDS * 32, np.uint8)
    flags[allowed] = 1
    return np.packbits(flags, bitorder="little").tobytes()


def nested() -> AutomatonTables:
    """As many b as there were a, and never more. The stack decides which of them are allowed."""
    classes = np.zeros(256, np.uint8)
    classes[ord("a")], classes[ord("b")] = 1, 2
    masks = np.frombuffer(bits([ord("a")]) + bits([EOS]), np.int32).reshape(2, WORDS)
    return tables(
        classes,
        np.array([[-1, -2, -1], [-1, -3, -4], [-1, -1, -1]]),
        [0, 0, 1],
        masks,
        actions=[(PUSH, 1, 0, 1), (PUSH, 1, 1, 1), (POP, 0, 0, -2)],
        returns=[2, 1],
        lists=Lists([(0, 0, 1), (0, 0, 2), (0, 0, 0)], [([], [ord("a")]), ([ord("b")], [ord("a")])]),
    )
