"""A small vocabulary with tokens of several bytes, and a compiler driven by hand."""

from __future__ import annotations

import json
import time

import numpy as np
from arbora.grammars import (
    Automaton,
    BusyError,
    CompilerError,
    GrammarCompiler,
    GrammarError,
    HostGrammar,
)
from arbora.grammars.processes.compiler_pool import CompilerPool
from arbora.runtime.grammar_spec import GrammarSpec
from arbora.runtime.vocabulary import Vocabulary, build_vocabulary
from mask_tables import state_mask

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


def compiler(**options: object) -> GrammarCompiler:
    words = vocabulary()
    made = GrammarCompiler(words, MODEL_VOCAB, **options)  # type: ignore[arg-type]
    made.start()
    return made


def server_pid(pool: CompilerPool) -> int | None:
    """The process id of a pool's fork server; None if none has started."""
    running = pool.server._running
    return running.process.pid if running is not None else None


def submit(
    compiler: GrammarCompiler, ticket: str, kind: str, text: str, *, tenant: str = "", **options: object
) -> None:
    """`options` are fields of the spec."""
    compiler.submit(ticket, GrammarSpec(kind, text, **options), tenant=tenant)  # type: ignore[arg-type]


def compiled(
    compiler: GrammarCompiler, kind: str, source: object, **options: object
) -> Automaton | HostGrammar | GrammarError | CompilerError | BusyError:
    """Submits and waits. Strings are taken as they are, everything else as JSON."""
    text = source if isinstance(source, str) else json.dumps(source)
    submit(compiler, "ticket", kind, text, **options)  # type: ignore[arg-type]
    return answer(compiler, "ticket")


def answer(
    compiler: GrammarCompiler, wanted: str
) -> Automaton | HostGrammar | GrammarError | CompilerError | BusyError:
    """Waits for one ticket, also while a worker compiles its own code; the answers to others are lost."""
    for _ in range(300_000):
        for ticket, result in compiler.finished():
            if ticket == wanted:
                return result
        time.sleep(0.001)
    raise AssertionError("the compiler didn't answer")


class Follower:
    """Follows an automaton from its tables as the device does, in plain Python."""

    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton
        self._words = vocabulary().for_automata()
        self.state, self.stack = automaton.machine.start, list(automaton.machine.bottom)

    def allowed(self) -> set[int]:
        mask = state_mask(self._automaton.tables, self.state)
        decided = mask.undecided | mask.openers
        return mask.allowed - decided | {token for token in decided if self._after(token)[0] >= 0}

    def take(self, token: int) -> None:
        self.state, self.stack = self._after(token)

    def _after(self, token: int) -> tuple[int, list[int]]:
        state, stack = self.state, list(self.stack)
        for byte in b"" if token == EOS else self._words.token_bytes(token):
            state = self._automaton.machine.step(state, stack, byte) if state >= 0 else state
        return state, stack


def random_output(grammar: Automaton | HostGrammar, seed: int, steps: int = 600) -> bytes:
    """Tokens drawn evenly from the masks until the end, which is preferred once it is allowed."""
    generator = np.random.default_rng(seed)
    follow = Follower(grammar) if isinstance(grammar, Automaton) else HostFollower(grammar)
    tokens: list[int] = []
    for _ in range(steps):
        choices = sorted(follow.allowed())
        token = EOS if EOS in choices else int(generator.choice(choices))
        if token == EOS:
            return spelled(tokens)
        tokens.append(token)
        follow.take(token)
    raise AssertionError("no end")


class HostFollower:
    """Follows a grammar of llguidance."""

    def __init__(self, grammar: HostGrammar) -> None:
        self._matcher = grammar.matcher()

    def allowed(self) -> set[int]:
        mask = np.zeros(-(-MODEL_VOCAB // 32), np.int32)
        self._matcher.fill_mask(mask)
        return allowed(mask)

    def take(self, token: int) -> None:
        assert self._matcher.consume(token) is None


def spelled(tokens: list[int]) -> bytes:
    words = vocabulary()
    return b"".join(words.token_bytes(token) for token in tokens if token != EOS)


def allowed(mask: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())
