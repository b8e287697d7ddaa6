"""Reads one schema document as formulas. A subschema is read when a value is compared with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from ....runtime.grammar_spec import Unenforced
from ...errors import GrammarError, NotCoveredError, WrongKeywordError
from ...regex.ecma import MalformedError, RegexError
from ...regex.regex_dfa import searching
from ..lexical.texts import LengthError
from .formula import EVERY_TYPE, SCHEMA, Atom, Fact, Formula, Pattern, Subschema
from .formulas import Formulas
from .identities import Identities
from .json_text import Json
from .place import Place
from .references import References

CHECKED = frozenset(("uniqueItems",))
"""Keywords that a check of the whole value may enforce instead; most values that models write pass it."""
Reader: TypeAlias = "Callable[[SchemaDocument, Place], Iterator[Formula]]"
"""Yields the formulas for one keyword of a subschema."""


class SchemaDocument:
    """Reads one schema document. `whole` is its formula; `expanded` reads the subschemas of one value.

    A keyword without an automaton raises NotCoveredError, or is left out, with its path in `left_out`: every
    such keyword if `unenforced` is "allow", and those in `CHECKED` if the whole value `is_checked` later. A
    keyword with a meaningless value always raises an error. An unknown format is only an annotation, unless
    `unenforced` is "refuse". The keywords at the paths in `ignored` are left out too.
    """

    def __init__(
        self,
        root: Json,
        formulas: Formulas,
        readers: Mapping[str, Reader],
        *,
        unenforced: Unenforced,
        is_checked: bool,
        ignored: frozenset[str],
    ) -> None:
        self.formulas = formulas
        self.references = References(root)
        self._readers = readers
        self._places: list[Place] = []
        self._known: dict[tuple[int, str], Formula] = {}
        self._identities = Identities()
        self._opened: dict[int, Formula | None] = {}
        self._unenforced = unenforced
        self._is_checked = is_checked and unenforced != "refuse"
        self.left_out: dict[str, str] = {}
        self._ignored = ignored
        self.path_of_pattern: dict[str, tuple[str, str]] = {}
        self._length_keywords: dict[int, tuple[str, str]] = {}
        self.whole = self.schema(root, "#", "")

    def expanded(self, formula: Formula) -> Formula:
        return self.formulas.rewritten(formula, "expanded", self._opened_atom, SCHEMA)

    def schema(self, schema: Json, path: str, base: str) -> Formula:
        """The atom of a subschema."""
        if isinstance(schema, bool):
            return self.formulas.true if schema else self.formulas.false
        if not isinstance(schema, dict):
            raise GrammarError(f"the schema at {path} must be an object or a boolean")
        base = self.references.base_of(schema, base)
        key = (self._identities.of(schema), base)
        known = self._known.get(key)
        if known is None:
            if schema:
                self._places.append(Place(schema, path, base))
                known = self.formulas.atom(Subschema(len(self._places) - 1))
            else:
                known = self.formulas.true
            self._known[key] = known
        return known

    def child(self, place: Place, *steps: str | int) -> Formula:
        schema: Json = place.fields
        for step in steps:
            schema = schema[step]  # type: ignore[index]
        path = "/".join([place.path, *(str(step).replace("~", "~0").replace("/", "~1") for step in steps)])
        return self.schema(schema, path, place.base)

    def children(self, place: Place, keyword: str) -> list[Formula]:
        return [self.child(place, keyword, position) for position in range(len(place.listed(keyword)))]

    def referred(self, place: Place, keyword: str) -> Formula:
        path = f"{place.path}/{keyword}"
        schema, base = self.references.resolve(keyword, place.fields[keyword], place.base, path)
        return self.schema(schema, str(place.fields[keyword]), base)

    def place_of(self, formula: Formula) -> Place | None:
        """The place of the subschema that an atom stands for; None for other formulas."""
        match formula:
            case Atom(Subschema(number)):
                return self._places[number]
        return None

    def unless(self, fact: Fact) -> Formula:
        """A formula that holds for values that break the fact, and for values of other types."""
        others = self.formulas.types(EVERY_TYPE & ~fact.types)
        return self.formulas.any_of([others, self.formulas.negation(self.formulas.atom(fact))])

    def pattern(self, place: Place, keyword: str, pattern: Json) -> Formula:
        if not isinstance(pattern, str):
            raise place.mistake(keyword, "it must be a string")
        if self._may_leave_out("pattern"):
            try:
                searching(pattern)
            except MalformedError as error:
                raise place.mistake(keyword, str(error)) from None
            except RegexError as error:
                raise place.refusal(keyword, str(error)) from None
        self.path_of_pattern.setdefault(pattern, (keyword, f"{place.path}/{keyword}"))
        return self.formulas.atom(Pattern(pattern))

    def note_length(self, count: int, place: Place, keyword: str) -> None:
        """Remembers the keyword that tells texts of at least `count` code points from shorter ones."""
        self._length_keywords.setdefault(count, (keyword, f"{place.path}/{keyword}"))

    def uncountable(self, error: LengthError) -> NotCoveredError:
        """The error of the keyword behind a length that no automaton counts."""
        return NotCoveredError(*self._length_keywords[error.count], str(error))

    def leave_out_format(self, place: Place, name: str) -> None:
        """Leaves out an unknown format, which is an annotation by JSON schema's specification."""
        refusal = place.refusal("format", f"the format {name!r} is not known")
        if self._unenforced == "refuse":
            raise refusal
        self.left_out[refusal.path] = refusal.keyword

    def _may_leave_out(self, keyword: str) -> bool:
        return self._unenforced == "allow" or (self._is_checked and keyword in CHECKED)

    def _opened_atom(self, atom: Atom) -> Formula:
        assert isinstance(atom.fact, Subschema)
        number = atom.fact.number
        place = self._places[number]
        if number not in self._opened:
            self._opened[number] = None
            self._opened[number] = self.expanded(self._formula_of(place))
        opened = self._opened[number]
        if opened is None:
            return self._unless_refused(place.refusal("$ref", "it refers to itself"))
        return opened

    def _formula_of(self, place: Place) -> Formula:
        is_alone = "$ref" in place.fields and self.references.ignores_siblings
        keywords = {"$ref"} if is_alone else place.fields.keys()
        said: list[Formula] = []
        for keyword, read in self._readers.items():
            if self._ignored and (path := f"{place.path}/{keyword}") in self._ignored:
                self.left_out[path] = keyword
            elif keyword in keywords:
                said += self._read(read, place)
        return self.formulas.all_of(said)

    def _read(self, read: Reader, place: Place) -> list[Formula]:
        try:
            return list(read(self, place))
        except NotCoveredError as error:
            return [self._unless_refused(error)]

    def _unless_refused(self, error: NotCoveredError) -> Formula:
        """Leaves the keyword out: returns the formula that is always true. Raises the error if the keyword
        must be enforced."""
        if isinstance(error, WrongKeywordError) or not self._may_leave_out(error.keyword):
            raise error
        self.left_out[error.path] = error.keyword
        return self.formulas.true
