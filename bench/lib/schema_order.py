"""The order in which a schema declares the keys of its objects."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from arbora.grammars.schema.read.formula import ARRAY, OBJECT, STRING, Formula, Formulas
from arbora.grammars.schema.read.keywords import read_document


class SchemaOrder:
    """Puts the keys of an instance in the order in which its schema declares them.

    Alternatives may declare the same keys in different orders. Those that a string of the object itself
    contradicts, such as its kind, have no say.
    """

    def __init__(self, schema: Any) -> None:
        self._formulas = Formulas()
        self._document = read_document(json.loads(json.dumps(schema), parse_float=Decimal), self._formulas)

    def ordered(self, value: Any) -> Any:
        return self._ordered(value, [self._document.whole])

    def _ordered(self, value: Any, said: list[Formula]) -> Any:
        if isinstance(value, dict):
            atoms = [
                atom
                for formula in self._opened(said, OBJECT)
                for atom in self._fitting(formula, value).atoms()
            ]
            ranks = {name: rank for rank, name in enumerate(dict.fromkeys(_declared(atoms)))}
            keys = sorted(value, key=lambda key: ranks.get(key, len(ranks)))
            return {key: self._ordered(value[key], _of_member(atoms, key)) for key in keys}
        if isinstance(value, list):
            atoms = [atom for formula in self._opened(said, ARRAY) for atom in formula.atoms()]
            items = [atom for atom in atoms if atom.payload[0] == "items"]
            return [self._ordered(item, _of_item(items, index)) for index, item in enumerate(value)]
        return value

    def _opened(self, said: list[Formula], types: int) -> list[Formula]:
        return [self._formulas.restricted(self._document.expanded(formula), types) for formula in said]

    def _fitting(self, formula: Formula, value: dict[str, Any]) -> Formula:
        """Without the alternatives that the value contradicts, unless it contradicts all."""
        make = self._formulas
        fitting = make.rewritten(
            formula,
            ("fitting", json.dumps(value)),
            lambda atom: make.false if self._is_contradicted(atom, value) else atom,
        )
        return formula if fitting is make.false else fitting

    def _is_contradicted(self, atom: Formula, value: dict[str, Any]) -> bool:
        if atom.payload[0] != "every" or atom.payload[1].kind != "atom" or atom.payload[1].payload[0] != "in":
            return False
        texts = [value[name] for name in atom.payload[1].payload[1] if isinstance(value.get(name), str)]
        (child,) = self._opened([atom.payload[2]], STRING)
        return any(self._excludes(child, text) for text in texts)

    def _excludes(self, formula: Formula, text: str) -> bool:
        """Whether lists of strings alone tell that a string isn't meant."""
        make = self._formulas
        listed = {True: make.true, False: make.false}
        decided = make.rewritten(
            formula,
            ("text", text),
            lambda atom: listed[text in atom.payload[1]] if atom.payload[0] == "in" else atom,
        )
        return decided is make.false


def _declared(atoms: list[Formula]) -> list[str]:
    """Names of properties, then those that are only required."""
    lists = [
        atom.payload[1] for atom in atoms if atom.payload[0] == "every" and atom.payload[1].kind == "atom"
    ]
    properties = [name for names in lists if names.payload[0] == "in" for name in sorted(names.payload[1])]
    return properties + [atom.payload[1] for atom in atoms if atom.payload[0] == "has"]


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
