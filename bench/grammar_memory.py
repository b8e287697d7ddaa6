"""Checks that the scheduler's memory stops growing while clients send ever new schemas.

    PYTHONSAFEPATH=1 python bench/grammar_memory.py --schemas 4000

Each schema is compiled once and never used again. The cache of compiled grammars is small, so that it is full
early: growth after that is a leak. Prints the memory of this process, which stands in for the scheduler's,
and of all its processes together.
"""

from __future__ import annotations

import argparse
import json
import time

import psutil
from arbora.grammars import GrammarCompiler
from arbora.grammars.service import compiler
from arbora.runtime.grammar_spec import GrammarSpec
from arbora.runtime.vocabulary import build_vocabulary

CACHE_BYTES = 8 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schemas", type=int, default=4000)
    parser.add_argument("--kinds", choices=("schemas", "grammars", "both"), default="both")
    given = parser.parse_args()
    compiler.CACHE_BYTES = CACHE_BYTES
    this, made = psutil.Process(), _compiler()
    step = max(1, given.schemas // 10)
    print("  grammars   this process   all processes   processes")
    for number in range(given.schemas):
        if given.kinds == "grammars" or (given.kinds == "both" and number % 4 == 0):
            made.submit("ticket", GrammarSpec("grammar", f'start: "{number}" /[a-z]+/'))
        else:
            made.submit("ticket", GrammarSpec("json_schema", json.dumps(_schema(number))))
        while not made.finished():
            time.sleep(0.0005)
        if (number + 1) % step == 0:
            family = [this, *this.children(recursive=True)]
            own, whole = _memory(this), sum(map(_memory, family))
            print(f"  {number + 1:8} {own >> 20:10} MiB {whole >> 20:11} MiB {len(family):11}", flush=True)
    made.close()


def _schema(number: int) -> dict[str, object]:
    properties = {f"p{number}_{i}": {"type": "string", "maxLength": 5 + i} for i in range(4)}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _compiler() -> GrammarCompiler:
    words = build_vocabulary(
        [*(bytes([byte]) for byte in range(256)), b"<end>"], [False] * 256 + [True], (256,)
    )
    made = GrammarCompiler(words, 257)
    made.start()
    return made


def _memory(process: psutil.Process) -> int:
    """The bytes of a process, with its share of shared memory; 0 if it has ended."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


if __name__ == "__main__":
    main()
