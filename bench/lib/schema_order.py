"""The order in which a schema declares the keys of its objects."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from arbora.grammars.schema.read.document import Reading
from arbora.grammars.schema.read.formula import (
    ARRAY,
    OBJECT,
    STRING,
    Atom,
    Formula,
    Has,
    Items,
    Members,
    Strings,
)
from arbora.grammars.schema.read.formulas import Formulas
from arbora.grammars.schema.read.keywords import read_document


class SchemaOrder:
    """Puts the keys of an instance in the order in which its schema declares them.

    Alternatives may declare the same keys in different orders. Those that a string of the object itself
    contradicts, such as its kind, have no say.
    """

    def __init__(self, schema: Any) -> None:
        self._formulas = Formulas()
        root = json.loads(json.dumps(schema), parse_float=Decimal)
        self._document = read_document(root, self._formulas, Reading())

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
            items = [atom.fact for atom in atoms if isinstance(atom.fact, Items)]
            return [self._ordered(item, _of_item(items, index)) for index, item in enumerate(value)]
        return value

    def _opened(self, said: list[Formula], types: int) -> list[Formula]:
        return [self._formulas.restrict(self._document.expand(formula), types) for formula in said]

    def _fitting(self, formula: Formula, value: dict[str, Any]) -> Formula:
        """Without the alternatives that the value contradicts, unless it contradicts all."""
        make = self._formulas
        fitting = make.rewrite(
            formula,
            ("fitting", json.dumps(value)),
            lambda atom: make.false if self._is_contradicted(atom, value) else atom,
        )
        return formula if fitting is make.false else fitting

    def _is_contradicted(self, atom: Atom, value: dict[str, Any]) -> bool:
        match atom.fact:
            case Members(Atom(Strings(names)), said):
                texts = [value[name] for name in names if isinstance(value.get(name), str)]
                (child,) = self._opened([said], STRING)
                return any(self._excludes(child, text) for text in texts)
        return False

    def _excludes(self, formula: Formula, text: str) -> bool:
        """Whether lists of strings alone tell that a string isn't meant."""
        make = self._formulas

        def decided(atom: Atom) -> Formula:
            match atom.fact:
                case Strings(values):
                    return make.true if text in values else make.false
            return atom

        return make.rewrite(formula, ("text", text), decided) is make.false


def _declared(atoms: list[Atom]) -> list[str]:
    """Names of properties, then names that are only required."""
    properties: list[str] = []
    required: list[str] = []
    for atom in atoms:
        match atom.fact:
            case Members(Atom(Strings(names))):
                properties += sorted(names)
            case Has(name):
                required.append(name)
    return properties + required


def _of_member(atoms: list[Atom], key: str) -> list[Formula]:
    children: dict[Formula, None] = {}
    for atom in atoms:
        match atom.fact:
            case Members(Atom(Strings(names))) if key not in names:
                pass
            case Members(child=child):
                children[child] = None
    return list(children)


def _of_item(items: list[Items], index: int) -> list[Formula]:
    about = [each for each in items if each.first <= index and (each.end is None or index < each.end)]
    return list(dict.fromkeys(each.child for each in about))
