"""Which JSON schemas become automata, what these accept, and what they cost; beside llguidance.

Run: PYTHONSAFEPATH=1 python bench/grammars.py SAMPLE_DIR [--tekken FILE] [--json]
SAMPLE_DIR holds files with a `schema` and `tests` of `valid` and `data`. *Exact* schemas compile and no
instance contradicts them; *in order* with each object's keys in the schema's order first, *as it stands*
without. With a tekken vocabulary, masks of random states are made too.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import warnings
from base64 import b64decode
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from arbora.grammars.errors import GrammarError, NotCoveredError, TooLargeError
from arbora.grammars.host import HostCompiler, HostGrammar
from arbora.grammars.schema import SchemaCompiler
from arbora.grammars.schema.formula import ARRAY, OBJECT, Formula, Formulas
from arbora.grammars.schema.keywords import Keywords
from arbora.grammars.stack_automaton import StackAutomaton
from arbora.grammars.stack_masks import StackMasks
from arbora.grammars.token_trie import TokenTrie, build_trie

STATES_WITH_MASKS = 40  # of each automaton
SCHEMA_ORDER, ANY_ORDER, HOST = "arbora", "arbora, any order", "llguidance"
BOTH = "arbora, any order, else llguidance"


class Grammar(Protocol):
    def accepts(self, text: bytes) -> bool: ...


class HostText:
    """An llguidance grammar over single bytes."""

    def __init__(self, grammar: HostGrammar) -> None:
        self._grammar = grammar

    def accepts(self, text: bytes) -> bool:
        matcher = self._grammar.prototype.deep_copy()
        return bool(matcher.try_consume_tokens(list(text)) == len(text) and matcher.is_accepting())


@dataclass
class Tally:
    """What one engine did with the sample."""

    schemas: int = 0
    compiled: int = 0
    exact_in_order: int = 0
    exact_as_it_stands: int = 0
    invalid_accepted: int = 0
    valid_refused_in_order: int = 0
    valid_refused_as_it_stands: int = 0
    compile_ms: list[float] = field(default_factory=list)
    states: list[int] = field(default_factory=list)
    table_bytes: list[int] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)
    context: list[int] = field(default_factory=list)

    def judge(self, grammar: Grammar | None, instances: list[tuple[bool, bytes, bytes]]) -> None:
        self.schemas += 1
        if grammar is None:
            return
        self.compiled += 1
        accepted = [grammar.accepts(text) for _, text, _ in instances]
        in_order = [
            one or grammar.accepts(text) for one, (_, _, text) in zip(accepted, instances, strict=True)
        ]
        validity = [valid for valid, _, _ in instances]
        self.exact_as_it_stands += accepted == validity
        self.exact_in_order += in_order == validity
        pairs = list(zip(accepted, in_order, validity, strict=True))
        self.invalid_accepted += sum(ordered and not valid for _, ordered, valid in pairs)
        self.valid_refused_in_order += sum(valid and not ordered for _, ordered, valid in pairs)
        self.valid_refused_as_it_stands += sum(valid and not one for one, _, valid in pairs)


class SchemaOrder:
    """Puts the keys of an instance in the order in which its schema declares them."""

    def __init__(self, schema: Any) -> None:
        self._formulas = Formulas()
        self._keywords = Keywords(json.loads(json.dumps(schema), parse_float=Decimal), self._formulas)

    def ordered(self, value: Any) -> Any:
        return self._ordered(value, [self._keywords.whole])

    def _ordered(self, value: Any, said: list[Formula]) -> Any:
        if isinstance(value, dict):
            atoms = self._atoms(said, OBJECT)
            ranks = {name: rank for rank, name in enumerate(dict.fromkeys(_declared(atoms)))}
            keys = sorted(value, key=lambda key: ranks.get(key, len(ranks)))
            return {key: self._ordered(value[key], _of_member(atoms, key)) for key in keys}
        if isinstance(value, list):
            items = [atom for atom in self._atoms(said, ARRAY) if atom.payload[0] == "items"]
            return [self._ordered(item, _of_item(items, index)) for index, item in enumerate(value)]
        return value

    def _atoms(self, said: list[Formula], types: int) -> list[Formula]:
        opened = [self._formulas.restricted(self._keywords.expanded(formula), types) for formula in said]
        return [atom for formula in opened for atom in formula.atoms()]


def _declared(atoms: list[Formula]) -> list[str]:
    names: list[str] = []
    for atom in atoms:
        if atom.payload[0] == "has":
            names.append(atom.payload[1])
        elif (
            atom.payload[0] == "every"
            and atom.payload[1].kind == "atom"
            and atom.payload[1].payload[0] == "in"
        ):
            names += sorted(atom.payload[1].payload[1])
    return names


def _of_member(atoms: list[Formula], key: str) -> list[Formula]:
    about = [atom for atom in atoms if atom.payload[0] == "every"]
    listed = [
        atom
        for atom in about
        if atom.payload[1].kind != "atom"
        or atom.payload[1].payload[0] != "in"
        or key in atom.payload[1].payload[1]
    ]
    return list(dict.fromkeys(atom.payload[2] for atom in listed))


def _of_item(items: list[Formula], index: int) -> list[Formula]:
    spans = [(*atom.payload[1:3], atom.payload[3]) for atom in items]
    return list(
        dict.fromkeys(
            child for first, last, child in spans if first <= index and (last is None or index < last)
        )
    )


class Bench:
    def __init__(self, trie: TokenTrie | None) -> None:
        self._compiler = SchemaCompiler()
        tokens = [bytes([byte]) for byte in range(256)] + [b"<end>"]
        self._host = HostCompiler(tokens, [256], (256,))
        self._trie = trie
        self._masks = StackMasks(trie) if trie is not None else None
        self._chance = random.Random(0)
        self.tallies = {name: Tally() for name in (SCHEMA_ORDER, ANY_ORDER, HOST, BOTH)}
        self.refusals: dict[tuple[str, str], int] = {}
        self._compiler.compile('{"type":"string","pattern":"a"}')

    def run(self, case: dict[str, Any]) -> None:
        text = json.dumps(case["schema"])
        ours, theirs = self._ours(text, SCHEMA_ORDER), self._theirs(text)
        unordered = self._ours(text, ANY_ORDER)
        order = SchemaOrder(case["schema"]) if ours or theirs else None
        instances = [
            (
                test["valid"],
                _compact(test["data"]),
                _compact(order.ordered(test["data"]) if ours and order else test["data"]),
            )
            for test in case["tests"]
        ]
        self.tallies[SCHEMA_ORDER].judge(ours, instances)
        self.tallies[ANY_ORDER].judge(unordered, instances)
        self.tallies[HOST].judge(theirs, instances)
        self.tallies[BOTH].judge(unordered or theirs, instances)

    def _ours(self, text: str, engine: str) -> StackAutomaton | None:
        tally = self.tallies[engine]
        start = time.perf_counter()
        try:
            automaton = self._compiler.compile(
                text, property_order="any" if engine == ANY_ORDER else "schema"
            )
        except (GrammarError, TooLargeError) as error:
            named = error.keyword if isinstance(error, NotCoveredError) else str(error)
            self.refusals[engine, named] = self.refusals.get((engine, named), 0) + 1
            return None
        finally:
            tally.compile_ms.append((time.perf_counter() - start) * 1e3)
        tally.states.append(len(automaton.accepting))
        tally.table_bytes.append(automaton.nbytes)
        self._make_masks(automaton, tally)
        return automaton

    def _theirs(self, text: str) -> HostText | None:
        start = time.perf_counter()
        try:
            return HostText(self._host.json_schema(text, (",", ":")))
        except GrammarError:
            return None
        finally:
            self.tallies[HOST].compile_ms.append((time.perf_counter() - start) * 1e3)

    def _make_masks(self, automaton: StackAutomaton, tally: Tally) -> None:
        if self._masks is None:
            return
        states = len(automaton.accepting)
        for state in self._chance.sample(range(states), min(states, STATES_WITH_MASKS)):
            start = time.perf_counter()
            mask = self._masks.of(automaton, state)
            tally.mask_us.append((time.perf_counter() - start) * 1e6)
            tally.context.append(len(mask.context))


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")


def tekken_trie(path: Path) -> TokenTrie:
    content = json.loads(path.read_text())
    specials = content["config"]["default_num_special_tokens"]
    size = content["config"]["default_vocab_size"]
    texts = [b""] * specials + [
        b64decode(entry["token_bytes"]) for entry in content["vocab"][: size - specials]
    ]
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    data = np.frombuffer(b"".join(texts), np.uint8)
    return build_trie(offsets, data, np.zeros(len(texts), np.bool_), (2,), size)


def _percentiles(values: list[float] | list[int]) -> str:
    if not values:
        return "-"
    return " / ".join(f"{value:,.1f}" for value in np.percentile(values, [50, 90, 99, 100]))


def _printed(name: str, tally: Tally) -> None:
    share = tally.compiled / tally.schemas
    print(f"\n{name}: {tally.compiled} of {tally.schemas} schemas compiled ({share:.1%})")
    for label in ("exact_in_order", "exact_as_it_stands"):
        print(f"  {label.replace('_', ' ')}: {getattr(tally, label) / tally.schemas:.1%}")
    for label in ("invalid_accepted", "valid_refused_in_order", "valid_refused_as_it_stands"):
        print(f"  {label.replace('_', ' ')}: {getattr(tally, label)} instances")
    for label in ("compile_ms", "states", "table_bytes", "mask_us", "context"):
        if values := getattr(tally, label):
            print(f"  {label.replace('_', ' ')} p50 / p90 / p99 / max: {_percentiles(values)}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Coverage and cost of JSON schemas as automata")
    parser.add_argument("sample", type=Path, help="a folder of files with `schema` and `tests`")
    parser.add_argument("--tekken", type=Path, help="a tekken vocabulary, to make masks")
    parser.add_argument("--json", action="store_true", help="print one JSON object by engine")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    bench = Bench(tekken_trie(arguments.tekken) if arguments.tekken else None)
    for path in sorted(arguments.sample.glob("*.json")):
        bench.run(json.loads(path.read_text()))
    if arguments.json:
        print(json.dumps({name: asdict(tally) for name, tally in bench.tallies.items()}))
        return
    for name, tally in bench.tallies.items():
        _printed(name, tally)
    print("\nnot compiled:")
    for (engine, reason), count in sorted(bench.refusals.items(), key=lambda pair: -pair[1]):
        print(f"  {count} {engine}: {reason[:100]}")


if __name__ == "__main__":
    main()
