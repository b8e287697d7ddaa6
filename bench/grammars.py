"""Measures which JSON schemas each engine compiles, how exact it is, and what compiling and masks cost.

Run: PYTHONSAFEPATH=1 python bench/grammars.py --corpus DIR [--vocab tekken|bytes|FILE] [--json]
     [--engines arbora,llguidance,xgrammar,outlines-core]
     [--whitespace model|compact|spaced|indented]

DIR contains files with a `schema` and `tests`, each with `valid` and `data`. A schema is *exact* if it
compiles and no instance contradicts it, *over* if a valid instance is refused, *under* if an invalid one is
accepted. Instances are compact JSON, or have the white space of `--whitespace`; with `model`, each is written
indented, spaced and compact. An engine that keeps the schema's order of properties gets them in that
order. The time to compile includes everything before the first mask (for ours, the masks of all states), but
not the work that a process does once when it starts. As in our worker, Python's garbage is collected between
schemas, and automata of strings and numbers are cached across schemas. `mask_us` is the time of each mask
along the valid instances, the first time through. Our masks are made by the compiler, so this is the time to
combine a row's mask from its state's tables and to decide the tokens that depend on the stack, as a CPU's
sampling kernel does it: inside compiled code, because a single call from Python, of 2 to 4 µs, serves all
rows of a step. The other engines' masks are requested from Python.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import warnings
from base64 import b64decode
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import numpy as np
from arbora.grammars.errors import GrammarError, TooLargeError
from arbora.runtime.grammar_spec import Whitespace

sys.path.append(str(Path(__file__).parent / "lib"))
from grammar_engines import PIP_NAMES, Engine, Grammar, Words, engines, is_installed, write
from schema_order import SchemaOrder

PERCENTILES = (50, 90, 99, 99.9, 100)


@dataclass
class Tally:
    """The results of one engine on the corpus."""

    schemas: int = 0
    compiled: int = 0
    exact: int = 0
    over: int = 0
    under: int = 0
    invalid_accepted: int = 0
    valid_refused: int = 0
    compile_ms: list[float] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)
    table_bytes: list[int] = field(default_factory=list)

    def judge(self, grammar: Grammar, instances: list[tuple[bool, bytes]]) -> None:
        answers = [(valid, grammar.accepts(text)) for valid, text in instances]
        refused = answers.count((True, False))
        accepted = answers.count((False, True))
        self.compiled += 1
        self.exact += not refused and not accepted
        self.over += refused > 0
        self.under += accepted > 0
        self.valid_refused += refused
        self.invalid_accepted += accepted

    def summary(self) -> dict[str, Any]:
        counts = {name: value for name, value in vars(self).items() if isinstance(value, int)}
        lists = {name: value for name, value in vars(self).items() if isinstance(value, list)}
        return counts | {name: _percentiles(values) for name, values in lists.items()}


class Corpus:
    def __init__(self, folder: Path) -> None:
        self.cases = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
        self._ordered = [_ordered(case) for case in self.cases]

    def instances(self, number: int, ordered: bool, whitespace: Whitespace) -> list[tuple[bool, bytes]]:
        tests = self.cases[number]["tests"]
        values = self._ordered[number] if ordered else [test["data"] for test in tests]
        pairs = zip(tests, values, strict=True)
        return [(test["valid"], text) for test, value in pairs for text in write(value, whitespace)]


def _ordered(case: dict[str, Any]) -> list[Any]:
    data = [test["data"] for test in case["tests"]]
    try:
        order = SchemaOrder(case["schema"])
        return [order.ordered(value) for value in data]
    except (GrammarError, TooLargeError, RecursionError):  # our reader can't tell the order
        return data


def measured(engine: Engine, corpus: Corpus, words: Words, whitespace: Whitespace) -> Tally:
    tally = Tally()
    gc.freeze()
    for number, case in enumerate(corpus.cases):
        text = json.dumps(case["schema"])
        gc.collect()
        gc.disable()
        start = time.perf_counter()
        grammar = engine.compile(text)
        tally.compile_ms.append((time.perf_counter() - start) * 1e3)
        gc.enable()
        tally.schemas += 1
        if grammar is None:
            continue
        instances = corpus.instances(number, engine.ordered, whitespace)
        tally.judge(grammar, instances)
        if grammar.table_bytes is not None:
            tally.table_bytes.append(grammar.table_bytes)
        for valid, instance in instances:
            if valid and grammar.accepts(instance):
                tally.mask_us += grammar.mask_us(words.tokens(instance))
    return tally


def vocabulary(name: str) -> Words:
    if name == "bytes":
        return Words([bytes([byte]) for byte in range(256)])
    content = json.loads((_tekken() if name == "tekken" else Path(name)).read_text())
    specials = content["config"]["default_num_special_tokens"]
    size = content["config"]["default_vocab_size"]
    texts = [b64decode(entry["token_bytes"]) for entry in content["vocab"][: size - specials]]
    return Words([b""] * specials + texts)


def _tekken() -> Path:
    found = find_spec("mistral_common")
    if found is None or found.origin is None:
        raise SystemExit("the tekken vocabulary comes with mistral-common: pip install mistral-common")
    return max((Path(found.origin).parent / "data").glob("tekken_*.json"))


def _percentiles(values: list[float] | list[int]) -> dict[str, float] | None:
    if not values:
        return None
    found = np.percentile(values, PERCENTILES).tolist()
    return {f"p{percent:g}": round(value, 2) for percent, value in zip(PERCENTILES, found, strict=True)}


def _table(tallies: dict[str, Tally]) -> str:
    summaries = {name: tally.summary() for name, tally in tallies.items()}
    lines = ["| | " + " | ".join(summaries) + " |", "|---" * (len(summaries) + 1) + "|"]
    for row in Tally().summary():
        cells = [_cell(summary[row]) for summary in summaries.values()]
        label = f"{row} p50 / p90 / p99 / p99.9 / max" if isinstance(getattr(Tally(), row), list) else row
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(value: int | dict[str, float] | None) -> str:
    if isinstance(value, dict):
        return " / ".join(f"{number:,.1f}" for number in value.values())
    return "–" if value is None else f"{value:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Coverage and cost of engines for JSON schemas")
    parser.add_argument("--corpus", type=Path, required=True, help="a folder of schemas with instances")
    parser.add_argument("--engines", default="arbora,llguidance", help="names, with commas between them")
    parser.add_argument("--vocab", default="bytes", help="tekken, bytes, or a file in tekken's format")
    parser.add_argument(
        "--whitespace", default="compact", choices=get_args(Whitespace), help="of the JSON texts"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object by engine")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    words = vocabulary(arguments.vocab)
    corpus = Corpus(arguments.corpus)
    tallies: dict[str, Tally] = {}
    for name in arguments.engines.split(","):
        if name in PIP_NAMES and not is_installed(name):
            raise SystemExit(f"{name} is not installed: pip install {PIP_NAMES[name]}")
        for label, engine in engines(name, words, arguments.whitespace).items():
            tallies[label] = measured(engine, corpus, words, arguments.whitespace)
    if arguments.json:
        print(json.dumps({name: tally.summary() for name, tally in tallies.items()}))
    else:
        print(_table(tallies))


if __name__ == "__main__":
    main()
