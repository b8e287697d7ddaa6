"""Compiles JSON schemas to stack automata."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ...runtime.grammar_spec import AdditionalProperties, JsonSpacing, PropertyOrder, Unenforced
from ..errors import GrammarError, NotCoveredError, NoValueError, TooLargeError, WrongKeywordError
from ..machine.stack_automaton import StackAutomaton
from ..regex.ecma import MalformedError, RegexError
from .emit.assemble import Assembler
from .emit.deep_members import StrandingError
from .lexical.texts import LengthError
from .read.document import SchemaDocument
from .read.formulas import Formulas
from .read.json_text import Json, WrittenDecimal, parse_schema
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
    """Keyword and path of each constraint that the machine does not enforce."""


class SchemaCompiler:
    """Compiles schemas. The automata of strings and numbers are cached across schemas."""

    def __init__(self) -> None:
        self._scalars = Scalars()

    def compile(
        self,
        text: str,
        *,
        whitespace: JsonSpacing = "compact",
        property_order: PropertyOrder = "schema",
        additional_properties: AdditionalProperties = "schema",
    ) -> StackAutomaton:
        """The automaton of exactly the JSON texts with this white space that the schema allows.

        Declared properties come in the schema's order, followed by undeclared ones; or in any order, except
        in objects with more than `MAX_SEEN` properties or whose properties depend on each other too much.
        `additional_properties`: "declared" forbids undeclared ones where the schema does not mention any.

        Raises GrammarError for a wrong schema, NotCoveredError for a keyword without an automaton, and
        TooLargeError beyond a limit.
        """
        return self.compile_allowing(
            "refuse",
            text,
            whitespace,
            property_order=property_order,
            additional_properties=additional_properties,
        ).machine

    def compile_allowing(
        self,
        unenforced: Unenforced,
        text: str,
        whitespace: JsonSpacing,
        *,
        property_order: PropertyOrder,
        additional_properties: AdditionalProperties = "schema",
        is_checked: bool = False,
    ) -> CompiledSchema:
        """As `compile`, but leaves out keywords where `unenforced` allows it.

        `is_checked`: the whole value is checked against the schema later, which may enforce more keywords.
        A schema that no value with only declared properties satisfies is compiled as it is written.
        """
        schema = parse_schema(text, WrittenDecimal)
        only_declared, ignored = additional_properties == "declared", frozenset[str]()
        while True:
            document = read_document(
                schema,
                Formulas(),
                unenforced=unenforced,
                is_checked=is_checked,
                only_declared=only_declared,
                ignored=ignored,
            )
            try:
                compiled = self._compile_part(schema, document, whitespace, property_order, only_declared)
            except LengthError as error:
                refusal = document.uncountable(error)
                if unenforced != "allow" or refusal.path in ignored:
                    raise refusal from None
                ignored |= {refusal.path}
                continue
            if compiled is not None:
                return compiled
            only_declared = False

    def _compile_part(
        self,
        schema: Json,
        document: SchemaDocument,
        whitespace: JsonSpacing,
        property_order: PropertyOrder,
        only_declared: bool,
    ) -> CompiledSchema | None:
        """None if `only_declared` leaves no value."""
        solver = Solver(ValueGraph(document, self._scalars, any_order=property_order == "any"))
        try:
            value = solver.solve([document.whole])
            if not value.possible and only_declared:
                return None
            if not value.possible:
                raise _no_value(schema)
            machine = _assemble(solver, whitespace, value)
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


_VALUES = ("const", "enum", "default", "examples", "example")  # keywords without schemas in them
_BOUNDS = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
)


def _no_value(schema: Json) -> GrammarError:
    """The error of a schema that allows no value; NoValueError if another engine, with longer numbers, might
    find one."""
    kind = NoValueError if _bounds_numbers(schema) else GrammarError
    if crossed := _crossed_bounds(schema, "#"):
        return kind(f"the schema allows no value: {crossed}")
    if kind is GrammarError:
        return kind("the schema allows no value, or none that ends")
    digits = " (numbers have up to 20 digits)" if _has_long_numbers(schema) else ""
    return kind(f"the schema allows no value{digits}")


def _crossed_bounds(schema: Json, path: str) -> str:
    """Names a lower bound above its upper bound, with the path of its subschema; empty if there is none."""
    parts: Iterable[tuple[object, Json]]
    if isinstance(schema, list):
        parts = enumerate(schema)
    elif isinstance(schema, dict):
        for least, most in _BOUNDS:
            low, high = schema.get(least), schema.get(most)
            if is_number(low) and is_number(high) and exact_number(low) > exact_number(high):
                return f"at {path}, {least} is {low}, above {most}, which is {high}"
        parts = ((key, part) for key, part in schema.items() if key not in _VALUES)
    else:
        return ""
    return next(filter(None, (_crossed_bounds(part, f"{path}/{name}") for name, part in parts)), "")


def _has_long_numbers(schema: Json) -> bool:
    """Whether a number may need more digits than the automata allow."""
    if isinstance(schema, dict | list):
        return any(map(_has_long_numbers, schema.values() if isinstance(schema, dict) else schema))
    return is_number(schema) and schema != 0 and not 10**-15 < abs(exact_number(schema)) < 10**15


def _bounds_numbers(schema: Json) -> bool:
    if isinstance(schema, dict):
        return any(
            _lists_numbers(part) if key in ("const", "enum") else key in _OF_NUMBERS or _bounds_numbers(part)
            for key, part in schema.items()
        )
    return isinstance(schema, list) and any(map(_bounds_numbers, schema))


def _lists_numbers(value: Json) -> bool:
    if isinstance(value, dict | list):
        return any(map(_lists_numbers, value.values() if isinstance(value, dict) else value))
    return is_number(value)
