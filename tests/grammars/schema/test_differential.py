"""Our automata and llguidance agree on the texts that a schema allows, apart from listed differences."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
from arbora.grammars import GrammarError
from arbora.grammars.machine.stack_automaton import StackAutomaton
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from json_automata import accepts_in_some_order, compact, compile_schema, walked
from llguidance_bytes import Peer

LLGUIDANCE_ALONE = re.compile(
    rb"""
      \\ u 00            # in place of a shorter escape, or in capitals
    | [eE][+-]?[0-9]{4}  # exponents that no double has
    | [0-9]{17}          # more digits than a double has
    | \. 0 \b            # of a number that may be an integer
    | :60 | -02-29       # leap seconds at any time of the day, leap days in any year
    | 0000-              # the year 0, which many readers of dates don't have
    """,
    re.VERBOSE,
)
NAMES = ["a", "ab", "b", "é", 'q"']
TEXTS = ["", "a", "ab", "abc", "b1", "é", "\U0001f600", "\n", "\\", "2024-02-29", "a@b.fr", "x y"]
PATTERNS = [
    "^a", "^[ab]*b$", "^[a-c]{1,3}$", "^[^x]$", "^b[0-9]+", "^(ab|é)*$", r"^a\\", "^(a|ab)(c|bcd)$", "^[^a]",
    "^[A-Z][a-z]{2,}( [A-Z][.])?$", "^([0-9]{3}-)?[0-9]{4}$", "^$", "^x{0,40}$", "^[a-z]+@$", "^[^a][^b]",
]  # fmt: skip
FORMATS = ["date", "time", "date-time", "duration", "uuid", "ipv4", "ipv6", "hostname", "email", "uri"]
numbers = st.integers(-300, 300) | st.sampled_from([0.5, -1.25, 1e3, 12.75, 0.05, -99.99, 1e-3, 123456])
listed = numbers.filter(lambda number: number != 1e3)  # llguidance takes 1000 for a listed 1000.0, too
scalars = st.one_of(st.none(), st.booleans(), listed, st.sampled_from(TEXTS))
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=4,
)


def described(type_name: str, **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(type_name)}, optional=optional)


leaves = st.one_of(
    st.sampled_from(["null", "boolean", "integer", "number", "string"]).map(lambda name: {"type": name}),
    described("integer", minimum=st.integers(-120, 20), maximum=st.integers(21, 1300)),
    described("number", minimum=numbers, exclusiveMaximum=st.integers(301, 400)),
    described("integer", multipleOf=st.sampled_from([2, 5, 7])),
    described("string", minLength=st.integers(0, 2), maxLength=st.integers(2, 5)),
    described("string", minLength=st.integers(0, 40), maxLength=st.integers(70, 90)),
    described("string", pattern=st.sampled_from(PATTERNS)),
    described("string", format=st.sampled_from(FORMATS)),
    st.lists(scalars, min_size=1, max_size=3).map(lambda listed: {"enum": listed}),
    values.map(lambda value: {"const": value}),
    st.just({"$ref": "#/$defs/again"}),
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        described(
            "object",
            properties=st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
            required=st.lists(st.sampled_from(NAMES[:4]), max_size=2, unique=True),
            additionalProperties=st.just(False) | inner,
            patternProperties=st.dictionaries(st.sampled_from(["^a", "^x-", "[0-9]$"]), inner, max_size=2),
            maxProperties=st.integers(2, 3),
        ),
        described(
            "array",
            prefixItems=st.lists(inner, min_size=1, max_size=2),
            items=st.just(False) | inner,
            minItems=st.integers(0, 2),
            maxItems=st.integers(2, 4),
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts}),
        st.tuples(inner, inner).map(lambda parts: {"allOf": list(parts)}),
    )


subschemas = st.recursive(leaves, containers, max_leaves=5)
again = st.one_of(
    st.just({"type": "array", "items": {"$ref": "#/$defs/again"}}),
    st.just({"type": "object", "properties": {"a": {"$ref": "#/$defs/again"}}}),
    st.just({"type": "boolean"}),
)
schemas = st.tuples(subschemas, again).map(
    lambda both: {**({"allOf": [both[0]]} if "$ref" in both[0] else both[0]), "$defs": {"again": both[1]}}
)


def mutated(text: bytes, chance: random.Random) -> bytes:
    """The text with one byte more, one less or another one, or with two parts exchanged."""
    position = chance.randrange(len(text) + 1)
    other = bytes([chance.choice(b'"\\{}[],:0123456789.-+eEabtnu \n\x00\x7f\xc3\xa9\xff')])
    head, tail = text[:position], text[position:]
    return chance.choice([head + other + tail, head + tail[1:], head + other + tail[1:], tail + head])


def varied(value: Any, chance: random.Random) -> Any:
    """The value with one part replaced or moved."""
    if isinstance(value, list) and value and chance.random() < 0.7:
        place = chance.randrange(len(value))
        kept = (
            value[place + 1 :]
            if chance.random() < 0.3
            else [varied(value[place], chance), *value[place + 1 :]]
        )
        return [*value[:place], *kept]
    if isinstance(value, dict) and value and chance.random() < 0.8:
        name = chance.choice(list(value))
        if chance.random() < 0.3:
            return {key: each for key, each in value.items() if key != name}
        return {key: varied(each, chance) if key == name else each for key, each in value.items()}
    return chance.choice(
        [None, True, 0, -1, 7, 2.5, 130, "a", "ab", "abcdef", "é", [], {}, [0], {"a": 0}, {"zz": 1}]
    )


def texts(automaton: StackAutomaton, peer: Peer, chance: random.Random) -> Iterator[bytes]:
    """Texts that either engine allows, and similar ones."""
    for length in (0, 8, 25):
        text = walked(automaton, chance, length)
        yield from (text, mutated(text, chance), compact(varied(json.loads(text), chance)))
        theirs = peer.walked(chance, length)
        if theirs is not None:
            yield from (theirs, mutated(theirs, chance))


def is_explained(schema: dict[str, Any], automaton: StackAutomaton, text: bytes) -> bool:
    """Whether a listed difference explains that only llguidance accepts a text, or llguidance is wrong to
    refuse a text that only ours accepts."""
    if automaton.accepts(text):
        return bool(jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)))
    return LLGUIDANCE_ALONE.search(text) is not None or accepts_in_some_order(automaton, json.loads(text))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas, st.randoms(use_true_random=False))
def test_both_accept_the_same_texts(schema: dict[str, Any], chance: random.Random) -> None:
    peer = Peer(schema)
    assume(not peer.error)
    try:
        automaton = compile_schema(schema)
    except GrammarError as error:
        assert "allows no value" in str(error)
        return
    for text in texts(automaton, peer, chance):
        assert automaton.accepts(text) == peer.accepts(text) or is_explained(schema, automaton, text), text
