"""Measures what two parts of the grammar compiler are worth: the depth guard, and the second regex compiler.

Run: PYTHONSAFEPATH=1 python bench/grammar_parts.py --corpus DIR

DIR contains files with a `schema`. For each schema with a depth guard it measures the processor time and the
bytes of its automaton with and without the guard; it also checks whether llguidance would serve the schema,
and whether any of 40 random walks that nest wherever they can gets stuck without the guard. For each
`pattern` in a schema that both regex compilers accept it measures the processor time of both. Too slow
patterns are left out.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from arbora.grammars.errors import GrammarError, TooLargeError
from arbora.grammars.host.native import HostCompiler
from arbora.grammars.machine.stack_automaton import StackAutomaton
from arbora.grammars.regex.byte_automaton import compile_regex
from arbora.grammars.regex.pattern import without_anchors
from arbora.grammars.regex.regex_dfa import compile_match
from arbora.grammars.schema.compile import SchemaCompiler
from arbora.grammars.schema.solve.nesting import Nesting
from arbora.runtime.grammar_spec import GrammarSpec

WALKS, STEPS = 40, 3_000
TOO_LONG = r"^(?:\S+\s+){0,99}\S+$"  # each compiler takes more than a minute for it


def timed(make: Callable[[], Any]) -> tuple[Any, float]:
    """The result of `make`, or None if it fails; and the shortest processor time of three calls in ms."""
    times = []
    for _ in range(3):
        began = time.process_time()
        try:
            made = make()
        except (GrammarError, TooLargeError):
            return None, 0.0
        times.append(1e3 * (time.process_time() - began))
    return made, min(times)


def gets_stuck(automaton: StackAutomaton) -> bool:
    """Whether a random walk that nests wherever it can reaches a state without an allowed byte."""
    chance = random.Random(1)
    bytes_of_classes = np.unique(automaton.class_of_byte, return_index=True)[1].tolist()
    for _ in range(WALKS):
        state, stack = automaton.start, list[int]()
        for _ in range(STEPS):
            if automaton.accepting[state] and not stack:
                break
            allowed = []
            for byte in bytes_of_classes:
                after = list(stack)
                target = automaton.step(state, after, byte)
                if target >= 0:
                    allowed.append((target, after))
            if not allowed:
                return True
            deeper = [step for step in allowed if len(step[1]) > len(stack)]
            state, stack = chance.choice(deeper if deeper and chance.random() < 0.9 else allowed)
    return False


def measure_guard(schemas: list[Any]) -> None:
    host = HostCompiler([bytes([byte]) for byte in range(256)] + [b""], [256], (256,))
    can_get_stuck = Nesting.can_get_stuck
    found: list[tuple[float, float, int, int, bool, bool]] = []
    for schema in schemas:
        text, answers = json.dumps(schema), list[bool]()

        def noted(nesting: Nesting, answers: list[bool] = answers) -> bool:
            answers.append(can_get_stuck(nesting))
            return answers[-1]

        compiler, spec = SchemaCompiler(), GrammarSpec("json_schema", text, whitespace="compact")
        with patch.object(Nesting, "can_get_stuck", noted):
            guarded, ms = timed(lambda: compiler.compile(spec).machine)  # noqa: B023
        if guarded is None or not any(answers):
            continue
        with patch.object(Nesting, "can_get_stuck", lambda _: False):
            free, free_ms = timed(lambda: compiler.compile(spec).machine)  # noqa: B023
        served, _ = timed(partial(host.compile, spec))
        found.append((ms, free_ms, guarded.nbytes, free.nbytes, gets_stuck(free), served is not None))
    ms, free_ms, nbytes, free_nbytes, stuck, served = map(sum, zip(*found, strict=True))
    print(f"guarded: {len(found)} of {len(schemas)}; {stuck} seen stuck without; llguidance serves {served}")
    print(f"  {ms:.0f} ms with the guard, {free_ms:.0f} without; {nbytes:,} bytes, {free_nbytes:,}")


def patterns_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("pattern"), str):
            yield value["pattern"]
        for part in value.values():
            yield from patterns_in(part)
    elif isinstance(value, list):
        for part in value:
            yield from patterns_in(part)


def _compiled_by_outlines(pattern: str) -> StackAutomaton:
    return compile_regex(without_anchors(pattern))


def measure_regexes(schemas: list[Any]) -> None:
    times = []
    for pattern in sorted({*patterns_in(schemas)} - {TOO_LONG}):
        both = (
            timed(partial(_compiled_by_outlines, pattern)),
            timed(partial(compile_match.__wrapped__, pattern)),
        )
        if all(made is not None for made, _ in both):
            times.append([ms for _, ms in both])
    for name, column in zip(("outlines-core", "ours"), np.array(times).T, strict=True):
        p50, p99 = np.percentile(column, (50, 99))
        print(f"{len(times)} patterns, {name}: {p50:.2f} ms at p50, {p99:.1f} at p99")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="a folder of schemas")
    folder: Path = parser.parse_args().corpus
    warnings.simplefilter("ignore", FutureWarning)
    schemas = [json.loads(path.read_text())["schema"] for path in sorted(folder.glob("*.json"))]
    measure_guard(schemas)
    measure_regexes(schemas)


if __name__ == "__main__":
    main()
