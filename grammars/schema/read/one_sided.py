"""Formats that are not regular: their automata accept only a part of the right texts.

Such an automaton makes a schema stricter wherever the format is required. A schema that depends on a text not
having the format (`not`, `if`, overlapping alternatives of `oneOf`) is refused.
"""

from __future__ import annotations

from ...errors import GrammarError
from .document import SchemaDocument
from .formula import Atom, Format, Formula, Members, Not, formulas_in

ONE_SIDED = frozenset(("regex", "idn-hostname", "idn-email"))


class OneSidedError(GrammarError):
    """The subschema at path `below` depends on a text not having the format `name`."""

    def __init__(self, name: str, below: str = "#") -> None:
        super().__init__(f"of some texts it is not known here whether they have the format {name!r}")
        self.name = name
        self.below = below


def refuse_one_sided(document: SchemaDocument) -> None:
    """Raises OneSidedError if such a format is negated, or distinguishes property names."""
    seen: set[tuple[Formula, bool]] = set()
    pending = [(document.whole, True, "#")]
    while pending:
        formula, is_asked_for, path = pending.pop()
        place = document.place_of(formula)
        path = path if place is None else place.path
        formula = document.expanded(formula)
        if (formula, is_asked_for) in seen:
            continue
        seen.add((formula, is_asked_for))
        pending += [(part, is_asked_for ^ isinstance(formula, Not), path) for part in formula.parts]
        match formula:
            case Atom(Format(name)) if name in ONE_SIDED and not is_asked_for:
                raise OneSidedError(name, path)
            case Atom(Members(names, child)):
                pending += [(each, is_asked_for, path) for each in (names, child)]
                pending.append((names, not is_asked_for, path))
            case Atom(fact):
                pending += [(child, is_asked_for, path) for child in formulas_in(fact)]
