"""Builds automata from grammars, in a process that may end at any of them."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import get_args

from llguidance.gbnf_to_lark import gbnf_to_lark

from ...runtime.automaton_format import DECIDED, MASK, NO_MASK, OWN, SHARED, STACK_DEPTH
from ...runtime.grammar_spec import GrammarSpec, PropertyOrder
from ..errors import GrammarError
from ..machine.stack_automaton import StackAutomaton
from ..masks.stack import StackMasks
from ..masks.token_trie import TokenTries
from ..regex.byte_automaton import compile_regex
from ..regex.of_spec import regex_of
from ..schema.compile import SchemaCompiler
from ..tags.compile import TagCompiler
from ..tags.format import read_format
from ..tags.special_tokens import SpecialTokens
from .automaton import Automaton
from .jobs import Result

_START_RULE = re.compile(r'("(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#.*)|(?<![\w-])start(?![\w-])')
"""A rule of GBNF with the name that the converter gives to the first rule; the group matches similar text."""
_FIRST_SCHEMAS = (
    "true",
    '{"type":"array","items":{"$ref":"#"}}',
    '{"properties":{"a":{"maxLength":99,"minLength":2},"b":{"pattern":"^a{1,40}$"},"c":{"type":"integer","minimum":0},'
    '"é":{"enum":["x","y",1]}},"patternProperties":{"^x":{"const":"a"}},"required":["a"],"additionalProperties":false}',
    *(f'{{"type":"string","format":"{name}"}}' for name in ("date-time", "email", "uri", "uuid")),
)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Disables garbage collection, which would find nothing while a grammar is built."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Builder:
    """Builds automata, and caches the automata that grammars share."""

    def __init__(self, tries: TokenTries, special: SpecialTokens) -> None:
        self._special = special
        self._schemas = SchemaCompiler()
        self._tags = TagCompiler(self._schemas)
        self._masks = StackMasks(tries)

    @_without_collection()
    def build(self, key: str, spec: GrammarSpec) -> Result:
        match spec.kind:
            case "grammar":
                return _in_lark(spec.text)
            case "regex" | "choice":
                return with_masks(key, compile_regex(regex_of(spec)), self._masks)
            case "json_schema" | "json_object":
                compiled = self._schemas.compile_allowing(
                    spec.unenforced,
                    spec.schema,
                    spec.whitespace,
                    additional_properties=spec.additional_properties,
                    property_order=spec.property_order,
                )
            case "structural_tag":
                compiled = self._tags.compile(
                    read_format(spec.text),
                    self._special.bytes_of,
                    spec.whitespace,
                    additional_properties=spec.additional_properties,
                    property_order=spec.property_order,
                    unenforced=spec.unenforced,
                )
        return replace(with_masks(key, compiled.machine, self._masks), left_out=compiled.left_out)

    def warm_up(self) -> None:
        """Compiles the kernels, and the strings and formats that most schemas use."""
        self.build("regex", GrammarSpec("regex", "a"))
        orders: tuple[PropertyOrder, ...] = get_args(PropertyOrder)
        for text in _FIRST_SCHEMAS:
            for order in orders:
                self.build(text, GrammarSpec("json_schema", text, property_order=order))


def with_masks(key: str, machine: StackAutomaton, masks: StackMasks) -> Automaton:
    """Adds token masks to the machine.

    Raises GrammarError if no token can begin a match, and TooLargeError if the masks take too much memory.
    """
    tables = masks.of(machine)
    start = tables.states[machine.start]
    if start[MASK] == NO_MASK and not start[[SHARED, OWN, DECIDED]].any():
        raise GrammarError("no token of this model's vocabulary can begin a match")
    machine = replace(machine, max_depth=min(machine.max_depth, STACK_DEPTH))
    return Automaton(key, machine, tables)


def _in_lark(text: str) -> str:
    try:
        return gbnf_to_lark(_START_RULE.sub(lambda found: found[1] or "start-rule", text))
    except RecursionError:
        raise GrammarError("its groups are nested too deep: name the inner ones as rules") from None
    except Exception as error:  # the converter raises plain Exceptions
        raise GrammarError(_gbnf_fault(text, str(error))) from None


def _gbnf_fault(text: str, fault: str) -> str:
    """The error of a grammar that is not Lark, from the converter's message."""
    if "::=" not in text:
        return 'the grammar is neither Lark nor GBNF: it has no rule, such as `start: "a"` or `root ::= "a"`'
    if undefined := re.fullmatch(r"Rule '(.*)' not found", fault):
        return f"in GBNF, rule '{undefined[1]}' is used but not defined"
    if found := re.fullmatch(r"(.*) at line (\d+), '(.*)' \^ '(.*)'", fault, re.DOTALL):
        what, line, before, after = found.groups()
        place = f"before '{after}'" if after else f"after '{before}', where the grammar ends"
        return f"the grammar is wrong GBNF in line {line}: {what[:1].lower()}{what[1:]} {place}"
    return f"the grammar is wrong GBNF: {fault}"
