"""White space between the tokens of JSON: what a reply may choose, and what its first choices leave."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest
from arbora.grammars.errors import TooLargeError
from arbora.grammars.machine.closing import Closing
from arbora.grammars.machine.jump_forward import forced_text
from arbora.grammars.machine.stack_automaton import StackAutomaton
from arbora.runtime.automaton_format import DEAD
from arbora.runtime.grammar_spec import PropertyOrder
from hypothesis import given, settings
from hypothesis import strategies as st
from json_automata import compile_schema, compile_tag, steps

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "home": {"type": "object", "properties": {"city": {"type": "string"}}, "additionalProperties": False},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
ORDERS: tuple[PropertyOrder, ...] = ("schema", "any")
ADA = {"name": "Ada", "age": 36, "tags": ["a", "b"], "home": {"city": "Oslo"}}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.sampled_from(["", "a b", 'x"y', "{ }", "é\n"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)


def compiled(schema: Any, whitespace: Any = "model", order: PropertyOrder = "schema") -> StackAutomaton:
    return compile_schema(schema, whitespace=whitespace, property_order=order)


ANY = {order: compiled(True, order=order) for order in ORDERS}
DEEP = {
    order: compiled(
        {"type": ["array", "object"], "items": {"$ref": "#"}, "additionalProperties": {"$ref": "#"}},
        order=order,
    )
    for order in ORDERS
}
PEOPLE = {order: compiled(PERSON, order=order) for order in ORDERS}


def after(machine: StackAutomaton, text: str) -> tuple[int, list[int]]:
    stack = list(machine.bottom)
    return machine.walk(machine.start, stack, text.encode()), stack


def following(machine: StackAutomaton, text: str) -> str:
    """The ASCII characters that may come after a text."""
    state, stack = after(machine, text)
    return "".join(chr(byte) for byte in range(128) if machine.step(state, list(stack), byte) != DEAD)


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=200, deadline=None)
@given(
    VALUES,
    st.sampled_from([None, 0, 1, 2, 3, 4, 8, "\t"]),
    st.sampled_from([":", ": ", " : ", " :"]),
    st.booleans(),
)
def test_a_reply_may_have_the_white_space_of_any_json_writer(
    order: PropertyOrder, value: Any, indent: int | str | None, colon: str, spaced: bool
) -> None:
    comma = "," if indent is not None or not spaced else ", "
    text = json.dumps(value, indent=indent, separators=(comma, colon), ensure_ascii=False)
    assert ANY[order].accepts(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        '{ "name": "A", "age": 1 }',
        '{"name": "A", "age": 1, "tags": [ "a", "b" ]}',
        '{\n  "name": "A",\n  "age": 1,\n  "tags": ["a", "b"],\n  "home": {}\n}',
        '{\n  "name": "A",\n  "age": 1,\n  "tags": [\n    "a"\n  ],\n  "home": {"city": "B"}\n}',
        '{"name": "A", "age": 1, "home": {\n  "city": "B"\n}}',
    ],
)
def test_each_container_chooses_between_one_line_and_several(text: str) -> None:
    assert all(machine.accepts(text.encode()) for machine in PEOPLE.values())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "text", ['{ "a": [], "b": [ 1 ] }', '[{}, { "a": {}, "b": [] }, {}]', '{"a": [], "b": [], "c": [1]}']
)
def test_an_empty_container_chooses_nothing(order: PropertyOrder, text: str) -> None:
    assert ANY[order].accepts(text.encode())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("text", ["[\n]", "[ ]", "{\n}", "{ }", '{\n  "a": [\n  ]\n}'])
def test_an_empty_container_has_no_white_space(order: PropertyOrder, text: str) -> None:
    assert json.loads(text) is not None
    assert not ANY[order].accepts(text.encode())


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from("[\n {"), max_size=60), st.randoms(use_true_random=False))
def test_the_deepest_container_that_may_be_open_can_be_closed(
    order: PropertyOrder, opened: list[str], chance: random.Random
) -> None:
    machine = DEEP[order]
    state, stack = machine.start, list(machine.bottom)
    for byte in "".join(opened).encode():
        after_byte = list(stack)
        if (target := machine.step(state, after_byte, byte)) != DEAD:
            state, stack = target, after_byte
    for _ in range(2_000):
        if machine.accepting[state] and len(stack) == len(machine.bottom):
            return
        allowed = steps(machine, state, stack)
        assert allowed, "stuck"
        ends = [byte for byte in b'"]} \n\t:' if byte in allowed]
        state, stack = allowed[ends[0] if ends else chance.choice(list(allowed))]
    raise AssertionError("no end")


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "A", "age":1}',
        '{"name":"A", "age":1,"tags":[]}',
        '{ "name": "A", "age": 1}',
        '{"name": "A", "age": 1 }',
        '{"name" : "A", "age": 1}',
        '{\n  "name": "A",\n    "age": 1\n}',
        '{\n  "name": "A",\n\t"age": 1\n}',
        '{\n  "name": "A", "age": 1\n}',
        '{\n  "name": "A",\n  "age": 1}',
        '{\n  "name": "A",\n  "age": 1\n  }',
        '{\n  "name": "A",\n  "age": 1,\n  "tags": [\n   "a"\n  ]\n}',
        '{"name": "A",\n"age": 1}',
    ],
)
def test_a_first_choice_binds_the_rest_of_the_reply(text: str) -> None:
    assert json.loads(text)
    assert not any(machine.accepts(text.encode()) for machine in PEOPLE.values())


@pytest.mark.parametrize(
    "text",
    [
        "{  ",
        "{\n\n",
        '{"name":  ',
        '{"name"  ',
        '{"name":"A",  ',
        "{\n         ",
        "{\n\t\t",
        "{ \n",
        "{\n \t",
        "{\r",
        " {",
    ],
)
def test_white_space_never_runs_on(text: str) -> None:
    assert after(PEOPLE["schema"], text)[0] == DEAD


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", '\n "'),
        ("{\n", '\t\n "'.replace("\n", "")),
        ('{\n  "name"', " :"),
        ('{\n  "name":', ' "'),
        ('{\n  "name": "A",\n  "age":', " "),
        ('{\n  "name": "A",', "\n"),
        ('{\n  "name": "A",\n', " "),
        ('{\n  "name": "A",\n ', " "),
        ('{\n  "name": "A",\n  ', '"'),
        ('{"name": "A",', ' "'),
        ('{"name": "A", "age": 1,', " "),
    ],
)
def test_only_what_the_choices_leave_may_follow(text: str, expected: str) -> None:
    assert sorted(following(PEOPLE["schema"], text)) == sorted(expected)


@pytest.mark.parametrize("order", ORDERS)
@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_indented_json_has_each_member_on_a_line_of_its_own(order: PropertyOrder, value: Any) -> None:
    machine = compiled(True, "indented", order)
    text = json.dumps(value, indent=2, ensure_ascii=False)
    assert machine.accepts(text.encode())
    for other in (json.dumps(value, ensure_ascii=False), json.dumps(value, indent=4, ensure_ascii=False)):
        assert machine.accepts(other.encode()) == (other == text)


@pytest.mark.parametrize(
    ("whitespace", "text"), [("compact", '{"name":"A","age":1}'), ("spaced", '{"name": "A", "age": 1}')]
)
def test_fixed_white_space_allows_no_other(whitespace: str, text: str) -> None:
    machine = compiled(PERSON, whitespace)
    value = json.loads(text)
    assert machine.accepts(text.encode())
    others = [
        json.dumps(value, indent=2),
        json.dumps(value, separators=(",", ": ")),
        json.dumps(value, separators=(",", ":")),
    ]
    assert [other for other in others if machine.accepts(other.encode())] == [
        other for other in others if other == text
    ]


def random_reply(machine: StackAutomaton, chance: random.Random, most: int) -> str:
    """A text of random bytes that the machine allows, ended in the shortest way."""
    state, stack, text = machine.start, list(machine.bottom), bytearray()
    while len(text) < most:
        live = [byte for byte in range(128) if machine.step(state, list(stack), byte) != DEAD]
        if not live:
            assert machine.accepting[state]
            return text.decode()
        structural = [byte for byte in live if byte in b'{}[]:,"\n \t'] or live
        byte = chance.choice(structural if chance.random() < 0.8 else live)
        state = machine.step(state, stack, byte)
        text.append(byte)
    closing = Closing(machine).text(state, stack)
    assert closing is not None, "the reply can't end"
    return (text + closing).decode()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("seed", range(30))
def test_whatever_a_reply_chooses_it_can_end_and_is_valid(order: PropertyOrder, seed: int) -> None:
    chance = random.Random(seed)
    for machine, plain in ((PEOPLE[order], compiled(PERSON, "compact", order)), (ANY[order], None)):
        reply = random_reply(machine, chance, chance.randrange(150))
        value = json.loads(reply)
        if plain is not None and "\\" not in reply:
            assert plain.accepts(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


@pytest.mark.parametrize(
    ("text", "forced"),
    [
        ('{"a":true', ","),
        ('{"a": true, "', 'b": true, "c": true}'),
        ('{"a":true,"', 'b":true,"c":true}'),
        ('{ "a" : true,"', 'b" : true,"c" : true }'),
        ('{\n  "a": true', ',\n  "b": true,\n  "c": true\n}'),
        ('{\n\t"a":true', ',\n\t"b":true,\n\t"c":true\n}'),
    ],
)
def test_forced_text_has_the_white_space_that_the_reply_chose(text: str, forced: str) -> None:
    names = ["a", "b", "c"]
    schema = {"type": "object", "properties": {name: {"const": True} for name in names}, "required": names}
    machine = compiled({**schema, "additionalProperties": False})
    state, stack = after(machine, text)
    assert forced_text(machine, machine.forced(), state, stack).text.decode() == forced


def test_forced_text_closes_what_the_reply_has_opened() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"enum": [True]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    machine = compiled({"type": "array", "items": schema, "minItems": 1, "maxItems": 1})
    state, stack = after(machine, '[\n  {\n    "a": t')
    assert forced_text(machine, machine.forced(), state, stack).text == b"rue\n  }\n]"


def test_a_value_that_may_be_left_out_is_not_forced() -> None:
    array = {"type": "json_schema", "json_schema": {"type": "array"}}
    optional = {"type": "or", "elements": [{"type": "const_string", "value": ""}, array]}
    machine = compile_tag(optional, whitespace="model").machine
    assert machine.accepts(b"") and machine.accepts(b"[]")
    assert not forced_text(machine, machine.forced(), machine.start, machine.bottom).text


def test_nesting_ends_before_the_stack_does() -> None:
    machine = ANY["schema"]
    depth = next(depth for depth in range(1, 40) if not machine.accepts(b"[" * depth + b"]" * depth)) - 1
    assert depth == 28
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    assert machine.accepts(json.dumps(value, indent=2).encode())


@pytest.mark.parametrize(("whitespace", "most"), [("compact", 30), ("model", 28), ("indented", 28)])
def test_a_schema_that_requires_more_levels_than_the_stack_has_is_refused(whitespace: str, most: int) -> None:
    def nested(levels: int) -> Any:
        return {"type": "array", "items": nested(levels - 1), "minItems": 1, "maxItems": 1} if levels else {}

    value: Any = 1
    for _ in range(most):
        value = [value]
    fixed = {"compact": None, "model": 4, "indented": 2}
    text = json.dumps(value, indent=fixed[whitespace])
    assert compiled(nested(most), whitespace).accepts(text.encode())
    with pytest.raises(TooLargeError, match=f"more than {most} levels"):
        compiled(nested(most + 1), whitespace)


def test_the_longest_indentation_fits_the_style() -> None:
    text, levels = "", 27
    for level in range(levels):
        text += "[\n" + " " * 8 * (level + 1)
    text += "1" + "".join("\n" + " " * 8 * level + "]" for level in range(levels - 1, -1, -1))
    assert ANY["schema"].accepts(text.encode())


@settings(max_examples=100, deadline=None)
@given(VALUES, st.integers(0, 10**6))
def test_white_space_changes_no_verdict(value: Any, seed: int) -> None:
    """A schema allows a value with white space exactly if it allows it without."""
    schema = random.Random(seed).choice(
        [
            PERSON,
            {"type": "array", "minItems": 1},
            {"not": {"type": "object"}},
            {"type": ["object", "null"], "maxProperties": 1},
        ]
    )
    free, plain = compiled(schema), compiled(schema, "compact")
    texts = [json.dumps(value, ensure_ascii=False, indent=indent) for indent in (None, 2)]
    verdicts = [free.accepts(text.encode()) for text in texts]
    verdicts.append(plain.accepts(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()))
    assert all(one == other for one, other in pairwise(verdicts))
