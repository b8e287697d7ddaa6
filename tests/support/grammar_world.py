"""A small vocabulary with tokens of several bytes, and a compiler driven by hand."""

from __future__ import annotations

import json
import time

import numpy as np
from arbora.grammars import Automaton, GrammarCompiler, GrammarError, HostGrammar
from arbora.runtime.vocabulary import Vocabulary, build_vocabulary

WORDS = [
    b"ab",
    b"abc",
    b"yes",
    b"no",
    b'{"',
    b'":',
    b'","',
    b"true",
    b" ",
    b"\xc3",
    b"\xc3\xa9",
    b"12",
    b"ab",
    b"z\xe2\x82",
]
CALL_TOKEN = 256 + len(WORDS)
EOS = CALL_TOKEN + 1
MODEL_VOCAB = EOS + 4  # a padded embedding


def vocabulary() -> Vocabulary:
    tokens = [bytes([byte]) for byte in range(256)] + WORDS + [b"<tool_call>", b"<end>"]
    special = [False] * (256 + len(WORDS)) + [True, True]
    return build_vocabulary(tokens, special, (EOS,))


def compiler() -> GrammarCompiler:
    words = vocabulary()
    return GrammarCompiler(
        offsets=words.offsets,
        data=words.data,
        special=words.special,
        eos_tokens=words.eos,
        vocab_size=MODEL_VOCAB,
    )


def compiled(
    compiler: GrammarCompiler, kind: str, source: object, **options: object
) -> Automaton | HostGrammar | GrammarError:
    """Submits and waits. Strings are taken as they are, everything else as JSON."""
    text = source if isinstance(source, str) else json.dumps(source)
    compiler.submit("ticket", kind, text, **options)  # type: ignore[arg-type]
    for _ in range(30_000):
        for ticket, result in compiler.finished():
            assert ticket == "ticket"
            return result
        time.sleep(0.001)
    raise AssertionError("the compiler didn't answer")


def allowed(mask: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())
