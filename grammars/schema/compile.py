"""Compiles JSON schemas to stack automata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...runtime.grammar_spec import GrammarSpec, JsonSpacing
from ..errors import GrammarError, NotCoveredError, NoValueError, TooLargeError, WrongKeywordError
from ..machine.stack_automaton import StackAutomaton
from ..regex.ecma import MalformedError, RegexError
from .emit.assemble import Assembler
from .emit.deep_members import StrandingError
from .lexical.texts import LengthError
from .read.document import Reading, SchemaDocument
from .read.formulas import Formulas
from .read.json_text import DATA, Json, WrittenDecimal, parse_schema, walk_objects
from .read.keywords import read_document
from .read.values import exact_number, is_number
from .solve.nesting import Nesting
from .solve.nodes import Value
from .solve.scalars import Scalars
from .solve.solver import Solver
from .solve.value_graph import ValueGraph

_OF_NUMBERS = {"maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "multipleOf"}


class CompiledSchema(NamedTuple):
    machine: StackAutomaton
    left_out: tuple[tuple[str, str], ...]
    """keyword and path of each constraint that the machine does not enforce"""


class SchemaCompiler:
    """Compiles schemas. The automata of strings and numbers are cached across schemas."""

    def __init__(self) -> None:
        self._scalars = Scalars()

    def compile(self, spec: GrammarSpec, *, is_checked: bool = False) -> CompiledSchema:
        """The automaton of exactly the JSON texts, with the spec's white space, that its schema allows.

        Declared properties come in the schema's order, followed by undeclared ones; or in any order, except
        in objects with more than `MAX_SEEN` properties or whose properties depend on each other too much. A
        schema that no value with only declared properties satisfies is compiled as it is written.
        `is_checked`: whether the whole value is checked against the schema later, for more keywords.

        Raises GrammarError for a wrong schema, NotCoveredError for a keyword without an automaton that may
        not be left out, and TooLargeError beyond a limit.
        """
        schema = parse_schema(spec.schema, WrittenDecimal)
        reading = Reading(spec.unenforced, is_checked, spec.additional_properties == "declared")
        while True:
            document = read_document(schema, Formulas(), reading)
            try:
                compiled = self._compile_part(spec, schema, document, reading)
            except LengthError as error:
                refusal = document.refuse_length(error)
                if spec.unenforced != "allow" or refusal.path in reading.ignored:
                    raise refusal from None
                reading = reading._replace(ignored=reading.ignored | {refusal.path})
                continue
            if compiled is not None:
                return compiled
            reading = reading._replace(only_declared=False)

    def _compile_part(
        self, spec: GrammarSpec, schema: Json, document: SchemaDocument, reading: Reading
    ) -> CompiledSchema | None:
        """Compiles a part of a schema; None if no value has only declared properties."""
        solver = Solver(ValueGraph(document, self._scalars, any_order=spec.property_order == "any"))
        try:
            value = solver.solve([document.whole])
            if not value.possible:
                if reading.only_declared:
                    return None
                raise _refuse_all(schema)
            machine = _assemble(solver, spec.whitespace, value)
        except RegexError as error:
            kind = WrongKeywordError if isinstance(error, MalformedError) else NotCoveredError
            raise kind(*document.path_of_pattern[error.pattern], str(error)) from None
        except RecursionError:
            raise TooLargeError("the schema is nested too deep") from None
        finally:
            solver.dissolve()
            document.formulas.dissolve()
        left_out = tuple((keyword, path) for path, keyword in document.left_out.items())
        return CompiledSchema(machine, left_out)


def _assemble(solver: Solver, whitespace: JsonSpacing, value: Value) -> StackAutomaton:
    while True:
        assembler = Assembler(solver, whitespace)
        nesting = Nesting(solver, value, assembler.places)
        is_guarded = nesting.can_get_stuck()
        if is_guarded:
            nesting.reserve_others()
        try:
            return assembler.build(value, guarded=is_guarded)
        except StrandingError as error:
            solver.put_in_order(error.containers)


_BOUNDS = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
)


def _refuse_all(schema: Json) -> GrammarError:
    """The error of a schema that allows no value; NoValueError if another engine, with longer numbers, might
    find one."""
    kind = NoValueError if _bounds_numbers(schema) else GrammarError
    if crossed := _find_crossed_bounds(schema):
        return kind(f"the schema allows no value: {crossed}")
    if kind is GrammarError:
        return kind("the schema allows no value, or none that ends")
    numbers = (abs(exact_number(number)) for number in _numbers_in(schema) if number != 0)
    is_long = not all(10**-15 < number < 10**15 for number in numbers)
    digits = " (numbers have up to 20 digits)" if is_long else ""
    return kind(f"the schema allows no value{digits}")


def _find_crossed_bounds(schema: Json) -> str:
    """Names a lower bound above its upper bound, with the path of its subschema; empty if there is none."""
    for path, fields in walk_objects(schema):
        for least, most in _BOUNDS if DATA.isdisjoint(path) else ():
            low, high = fields.get(least), fields.get(most)
            if is_number(low) and is_number(high) and exact_number(low) > exact_number(high):
                place = "/".join(("#", *path))
                return f"at {place}, {least} is {low}, above {most}, which is {high}"
    return ""


def _bounds_numbers(schema: Json) -> bool:
    return any(
        keyword in _OF_NUMBERS or (keyword in ("const", "enum") and any(True for _ in _numbers_in(value)))
        for _, fields in walk_objects(schema)
        for keyword, value in fields.items()
    )


def _numbers_in(value: Json) -> Iterator[float]:
    """All numbers in a JSON value."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _numbers_in(part)
    elif is_number(value):
        yield value
