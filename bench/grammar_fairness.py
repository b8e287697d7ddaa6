"""Measures how long small schemas wait while other clients of the same tenant send slow grammars.

    python bench/grammar_fairness.py --clients 12 --seconds 40

Each client sends a new regex whose automaton takes about a second, and the next one after the answer. Small
schemas are sent one at a time, at most every quarter of a second. Prints their waiting times in seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from itertools import count
from threading import Event

from arbora.grammars import GrammarCompiler
from arbora.runtime.grammar_spec import GrammarSpec
from arbora.runtime.vocabulary import build_vocabulary

VOCAB_SIZE = 258
PAUSE_S = 0.25


class Load:
    def __init__(self) -> None:
        self._finished = Event()
        tokens = [bytes([byte]) for byte in range(256)] + [b"<call>", b"<end>"]
        vocabulary = build_vocabulary(tokens, [False] * 256 + [True] * 2, (257,))
        self._compiler = GrammarCompiler(vocabulary, VOCAB_SIZE, on_finished=self._finished.set)
        self._compiler.start()
        self._numbers = count(time.time_ns() % 10**9 * 10**6)
        self._asked: dict[str, tuple[bool, float]] = {}  # whether the grammar is small, and when it was sent

    def ask(self, *, small: bool) -> None:
        number = next(self._numbers)
        schema = {"type": "object", "properties": {f"p{number}": {"type": "integer"}}}
        regex = f"(a|b|{number})*a(a|b){{12}}"
        spec = GrammarSpec("json_schema", json.dumps(schema)) if small else GrammarSpec("regex", regex)
        self._asked[str(number)] = small, time.monotonic()
        self._compiler.submit(str(number), spec)

    def answered(self, wait_s: float) -> list[tuple[bool, float]]:
        """Whether each answered grammar is small, and how long it took."""
        self._finished.wait(wait_s)
        self._finished.clear()
        asked = [self._asked.pop(ticket) for ticket, _ in self._compiler.finished()]
        return [(small, time.monotonic() - at) for small, at in asked]

    def complete(self, *, small: bool) -> float:
        """The time of one grammar alone."""
        self.ask(small=small)
        while not (answers := self.answered(1.0)):
            pass
        return answers[0][1]

    def close(self) -> None:
        for ticket in self._asked:
            self._compiler.cancel(ticket)
        self._compiler.close()


def measure(load: Load, clients: int, seconds: float) -> tuple[list[float], list[float]]:
    """The waiting times of small schemas and of slow grammars."""
    for _ in range(clients):
        load.ask(small=False)
    end, next_small, waits = time.monotonic() + seconds, 0.0, False
    small_s: list[float] = []
    slow_s: list[float] = []
    while (now := time.monotonic()) < end or waits:
        if now < end and not waits and now >= next_small:
            load.ask(small=True)
            next_small, waits = now + PAUSE_S, True
        for small, took in load.answered(0.02):
            (small_s if small else slow_s).append(took)
            if small:
                waits = False
            else:
                load.ask(small=False)
    return small_s, slow_s


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=12, help="with slow grammars (default: 12)")
    parser.add_argument("--seconds", type=float, default=40.0, help="of the measurement (default: 40)")
    options = parser.parse_args()
    load = Load()
    load.complete(small=True)
    for _ in range(2):
        load.complete(small=False)  # so that no measured grammar waits for the start of a worker
    print(f"alone: small {load.complete(small=True):.3f}, slow {load.complete(small=False):.2f}")
    small, slow = measure(load, options.clients, options.seconds)
    small.sort()
    print(
        f"with {options.clients} clients: {len(small)} small, p50 {statistics.median(small):.3f}, "
        f"p95 {small[len(small) * 95 // 100]:.3f}, max {small[-1]:.2f}; {len(slow)} slow"
    )
    load.close()


if __name__ == "__main__":
    main()
