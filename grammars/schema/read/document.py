"""Reads one schema document as formulas. A subschema is read when a value is compared with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ....runtime.grammar_spec import Unenforced
from ...errors import GrammarError, NotCoveredError, WrongKeywordError
from ...regex.ecma import MalformedError, RegexError
from ...regex.regex_dfa import compile_search
from ..lexical.texts import LengthError
from .formula import EVERY_TYPE, SCHEMA, Atom, Fact, Formula, Pattern, Subschema
from .formulas import Formulas
from .identities import Identities
from .json_text import Json, walk_objects
from .place import REFERENCES, Place, Undeclared
from .references import References

CHECKED = frozenset(("uniqueItems",))
"""keywords that a check of the whole value may enforce instead; most values that models write pass it"""
_DECLARING = frozenset(("properties", *REFERENCES))
Reader: TypeAlias = "Callable[[SchemaDocument, Place], Iterator[Formula]]"
"""yields the formulas for one keyword of a subschema"""
Beside: TypeAlias = "Callable[[SchemaDocument, Place, Sequence[str | int]], tuple[Place, ...] | None]"
"""finds the subschemas that apply to the same value as a subschema's part; None if there are too many"""


class Readers(NamedTuple):
    keywords: Mapping[str, Reader]
    """readers of keywords, in the order in which the keywords are read"""
    forbid_undeclared: Reader
    beside: Beside


class Reading(NamedTuple):
    """What is enforced of a schema.

    A keyword without an automaton raises NotCoveredError, or is left out: every such keyword if `unenforced`
    is "allow", and those in `CHECKED` if the whole value `is_checked` later. A keyword with a meaningless
    value always raises an error. An unknown format is only an annotation, unless `unenforced` is "refuse".
    The keywords at the paths in `ignored` are left out. With `only_declared` an object has only the
    properties that its subschemas declare, if these have `properties` and don't say otherwise.
    """

    unenforced: Unenforced = "refuse"
    is_checked: bool = False
    only_declared: bool = False
    ignored: frozenset[str] = frozenset()


class SchemaDocument:
    """Reads one schema document. `whole` is its formula; `expand` reads the subschemas of one value.
    `left_out` are the keywords that are not enforced, by path."""

    def __init__(self, root: Json, formulas: Formulas, readers: Readers, reading: Reading) -> None:
        self.formulas = formulas
        self.references = References(root)
        self._readers = readers
        self._reading = reading
        self._places: list[Place] = []
        self._known: dict[tuple[object, ...], Formula] = {}
        self._rests: dict[tuple[object, ...], Place] = {}
        self._identities = Identities()
        self._opened: dict[int, Formula | None] = {}
        self.left_out: dict[str, str] = {}
        self.path_of_pattern: dict[str, tuple[str, str]] = {}
        self._length_keywords: dict[int, tuple[str, str]] = {}
        self.whole = self.schema(root, "#", "", "forbidden" if reading.only_declared else "as written")

    def expand(self, formula: Formula) -> Formula:
        return self.formulas.rewrite(formula, "expanded", self._open_atom, SCHEMA)

    def schema(
        self, schema: Json, path: str, base: str, undeclared: Undeclared, beside: tuple[Place, ...] = ()
    ) -> Formula:
        """The atom of a subschema. `undeclared` and `beside` are fields of its `Place`."""
        if isinstance(schema, bool):
            return self.formulas.true if schema else self.formulas.false
        if not isinstance(schema, dict):
            raise GrammarError(f"the schema at {path} must be an object or a boolean")
        base = self.references.base_of(schema, base)
        key = (self._identities.number(schema), base, undeclared, tuple(map(self.identity, beside)))
        known = self._known.get(key)
        if known is None:
            if schema:
                is_alone = "$ref" in schema and self.references.ignores_siblings
                fields = {"$ref": schema["$ref"]} if is_alone else schema
                self._places.append(Place(fields, path, base, undeclared, beside))
                known = self.formulas.atom(Subschema(len(self._places) - 1))
            else:
                known = self.formulas.true
            self._known[key] = known
        return known

    def identity(self, place: Place) -> tuple[int, str]:
        """A key that is equal for places of equal subschemas."""
        return self._identities.number(place.fields), place.base

    def rest(self, place: Place, steps: Sequence[str | int]) -> Place:
        """The subschema without the inner subschema of the same value to which these steps lead."""
        return self._rests.setdefault((id(place.fields), *steps), place.without(steps))

    def part(self, place: Place, steps: Sequence[str | int]) -> Formula:
        """The atom of the subschema to which these steps lead."""
        return self.refer(place, str(steps[0])) if steps[0] in REFERENCES else self.child(place, *steps)

    def child(self, place: Place, *steps: str | int) -> Formula:
        schema: Json = place.fields
        for step in steps:
            schema = schema[step]  # type: ignore[index]
        path = "/".join([place.path, *(str(step).replace("~", "~0").replace("/", "~1") for step in steps)])
        return self.schema(schema, path, place.base, *self._around(place, steps, schema))

    def _around(
        self, place: Place, steps: Sequence[str | int], schema: Json
    ) -> tuple[Undeclared, tuple[Place, ...]]:
        """`undeclared` and `beside` of the subschema to which these steps lead."""
        undeclared = place.undeclared_under(str(steps[0]))
        if undeclared == "as written" or not _may_declare(schema):
            return "as written", ()
        found = self._readers.beside(self, place, steps)
        return ("as written", ()) if found is None else (undeclared, found)

    def children(self, place: Place, keyword: str) -> list[Formula]:
        return [self.child(place, keyword, position) for position in range(len(place.get_list(keyword)))]

    def refer(self, place: Place, keyword: str) -> Formula:
        path = f"{place.path}/{keyword}"
        schema, base = self.references.resolve(keyword, place.fields[keyword], place.base, path)
        return self.schema(schema, str(place.fields[keyword]), base, *self._around(place, (keyword,), schema))

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
                compile_search(pattern)
            except MalformedError as error:
                raise place.mistake(keyword, str(error)) from None
            except RegexError as error:
                raise place.refusal(keyword, str(error)) from None
        self.path_of_pattern.setdefault(pattern, (keyword, f"{place.path}/{keyword}"))
        return self.formulas.atom(Pattern(pattern))

    @property
    def is_strict(self) -> bool:
        """Whether unknown formats, too, are refused."""
        return self._reading.unenforced == "refuse"

    def note_length(self, count: int, place: Place, keyword: str) -> None:
        """Remembers the keyword that tells texts of at least `count` code points from shorter ones."""
        self._length_keywords.setdefault(count, (keyword, f"{place.path}/{keyword}"))

    def refuse_length(self, error: LengthError) -> NotCoveredError:
        """The error of the keyword behind a length that no automaton counts."""
        return NotCoveredError(*self._length_keywords[error.count], str(error))

    def leave_out_format(self, place: Place, name: str) -> None:
        """Leaves out an unknown format, which is an annotation by JSON schema's specification."""
        refusal = place.refusal("format", f"the format {name!r} is not known")
        if self.is_strict:
            raise refusal
        self.left_out[refusal.path] = refusal.keyword

    def _may_leave_out(self, keyword: str) -> bool:
        is_checked = self._reading.is_checked and not self.is_strict and keyword in CHECKED
        return is_checked or self._reading.unenforced == "allow"

    def _open_atom(self, atom: Atom) -> Formula:
        assert isinstance(atom.fact, Subschema)
        number = atom.fact.number
        place = self._places[number]
        if number not in self._opened:
            self._opened[number] = None
            self._opened[number] = self.expand(self._formula_of(place))
        opened = self._opened[number]
        if opened is None:
            return self._unless_refused(place.refusal("$ref", "it refers to itself"))
        return opened

    def _formula_of(self, place: Place) -> Formula:
        said: list[Formula] = []
        ignored = self._reading.ignored
        for keyword, read in self._readers.keywords.items():
            if ignored and (path := f"{place.path}/{keyword}") in ignored:
                self.left_out[path] = keyword
            elif keyword in place.fields:
                said += self._read(read, place)
        if place.undeclared == "forbidden":
            said += self._read(self._readers.forbid_undeclared, place)
        return self.formulas.all_of(said)

    def _read(self, read: Reader, place: Place) -> list[Formula]:
        try:
            return list(read(self, place))
        except NotCoveredError as error:
            return [self._unless_refused(error)]

    def _unless_refused(self, error: NotCoveredError) -> Formula:
        """Leaves the keyword out and returns the formula that is always true, or raises the error if the
        keyword must be enforced."""
        if isinstance(error, WrongKeywordError) or not self._may_leave_out(error.keyword):
            raise error
        self.left_out[error.path] = error.keyword
        return self.formulas.true


def _may_declare(schema: Json) -> bool:
    """Whether a subschema, or one inside it, may have `properties`."""
    return any(not _DECLARING.isdisjoint(fields) for _, fields in walk_objects(schema))
