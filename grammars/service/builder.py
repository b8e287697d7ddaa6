"""Builds automata from grammars.

Runs in a forked process, because a grammar may crash it or exceed its limits.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import get_args

from ...runtime.automaton_format import DECIDED, MASK, NO_MASK, OWN, SHARED, STACK_DEPTH
from ...runtime.grammar_spec import GrammarSpec, PropertyOrder
from ..errors import GrammarError
from ..machine.automaton import Automaton
from ..machine.stack_automaton import StackAutomaton
from ..masks.stack import StackMasks
from ..masks.token_trie import TokenTries
from ..regex.byte_automaton import compile_regex
from ..regex.pattern import read_regex
from ..schema.compile import SchemaCompiler
from ..tags.compile import TagCompiler
from ..tags.special_tokens import SpecialTokens

_FIRST_SCHEMAS = (
    "true",
    '{"type":"array","items":{"$ref":"#"}}',
    '{"properties":{"a":{"maxLength":99,"minLength":2},"b":{"pattern":"^a{1,40}$"},"c":{"type":"integer","minimum":0},'
    '"é":{"enum":["x","y",1]}},"patternProperties":{"^x":{"const":"a"}},"required":["a"],"additionalProperties":false}',
    *(f'{{"type":"string","format":"{name}"}}' for name in ("date-time", "email", "uri", "uuid")),
)


@contextmanager
def _disable_collection() -> Iterator[None]:
    """Disables garbage collection, which would find nothing while a grammar is built."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class AutomatonBuilder:
    """Builds automata, and caches the automata that grammars share."""

    def __init__(self, tries: TokenTries, special: SpecialTokens) -> None:
        self._special = special
        self._schemas = SchemaCompiler()
        self._tags = TagCompiler(self._schemas)
        self._masks = StackMasks(tries)

    @_disable_collection()
    def build(self, key: str, spec: GrammarSpec) -> Automaton:
        match spec.kind:
            case "grammar":
                raise AssertionError("the compiler selector gives grammars to llguidance")
            case "regex" | "choice":
                return add_masks(key, compile_regex(read_regex(spec)), self._masks)
            case "json_schema" | "json_object":
                compiled = self._schemas.compile(spec)
            case "structural_tag":
                compiled = self._tags.compile(spec, self._special.bytes_of)
        return replace(add_masks(key, compiled.machine, self._masks), left_out=compiled.left_out)

    def warm_up(self) -> None:
        """Compiles the kernels, and the strings and formats that most schemas use."""
        self.build("regex", GrammarSpec("regex", "a"))
        orders: tuple[PropertyOrder, ...] = get_args(PropertyOrder)
        for text in _FIRST_SCHEMAS:
            for order in orders:
                self.build(text, GrammarSpec("json_schema", text, property_order=order))


def add_masks(key: str, machine: StackAutomaton, masks: StackMasks) -> Automaton:
    """Adds token masks to the machine.

    Raises GrammarError if no token can begin a match, and TooLargeError if the masks take too much memory.
    """
    tables = masks.build(machine)
    start = tables.states[machine.start]
    if start[MASK] == NO_MASK and not start[[SHARED, OWN, DECIDED]].any():
        raise GrammarError("no token of this model's vocabulary can begin a match")
    machine = replace(machine, max_depth=min(machine.max_depth, STACK_DEPTH))
    return Automaton(key, machine, tables)
