"""Grammars that are deep, ambiguous or explode when compiled, by name.

Each is small enough to send in a request. None may end or stall a process of the server: a request with
one of them is answered, mostly with status 400, within a bound, and others go on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Hostile(NamedTuple):
    """`kind` and `text` are those of `arbora.runtime.messages.GrammarSpec`."""

    kind: str
    text: str

    def fields(self) -> str:
        """The request's field as the inside of a JSON object, to be joined with the others by a comma.

        It is text because Python's encoder can't write values that nest as deep as these.
        """
        match self.kind:
            case "regex":
                return f'"regex":{json.dumps(self.text)}'
            case "grammar":
                return f'"grammar":{json.dumps(self.text)}'
            case "choice":
                return f'"choice":{self.text}'
            case "structural_tag":
                return f'"response_format":{{"type":"structural_tag","format":{self.text}}}'
        return f'"json_schema":{self.text}'


def chat_body(hostile: Hostile, **others: object) -> bytes:
    """The body of a chat completion that asks for the grammar."""
    base = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, **others}
    return f"{json.dumps(base)[:-1]},{hostile.fields()}}}".encode()


def hostile_grammars(depths: tuple[int, ...] = (300, 5_000, 50_000)) -> Iterator[tuple[str, Hostile]]:
    """All of them, the generated ones in several depths."""
    for name, make in DEEP.items():
        for depth in depths:
            yield f"{name} {depth}", make(depth)
    for name, make_one in SINGLE.items():
        yield name, make_one()


def reference_chain(links: int) -> Hostile:
    """A chain of `$ref`: following it recursively takes a stack frame for each link."""
    definitions = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(links)} | {str(links): {}}
    return _schema({"$defs": definitions, "$ref": "#/$defs/0"})


def property_reference_chain(links: int) -> Hostile:
    """Each definition is an object with a property of the next one."""
    definitions: dict[str, object] = {
        str(i): {
            "type": "object",
            "properties": {"a": {"$ref": f"#/$defs/{i + 1}"}},
            "required": ["a"],
            "additionalProperties": False,
        }
        for i in range(links)
    }
    return _schema({"$defs": {**definitions, str(links): {"type": "null"}}, "$ref": "#/$defs/0"})


def all_of_reference_chain(links: int) -> Hostile:
    definitions: dict[str, object] = {
        str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"}, {"type": "object"}]} for i in range(links)
    }
    return _schema({"$defs": {**definitions, str(links): {}}, "$ref": "#/$defs/0"})


def item_reference_chain(links: int) -> Hostile:
    definitions: dict[str, object] = {
        str(i): {"type": "array", "items": {"$ref": f"#/$defs/{i + 1}"}, "minItems": 1, "maxItems": 1}
        for i in range(links)
    }
    return _schema({"$defs": {**definitions, str(links): {"type": "null"}}, "$ref": "#/$defs/0"})


def _nested(before: str, inner: str, after: str) -> Callable[[int], Hostile]:
    return lambda depth: Hostile("json_schema", before * depth + inner + after * depth)


def nested_tags(depth: int) -> Hostile:
    begin, end = '{"type":"tag","begin":"<a>","content":', ',"ends":["</a>"]}'
    return Hostile("structural_tag", begin * depth + '{"type":"regex","pattern":"a"}' + end * depth)


def nested_sequences(depth: int) -> Hostile:
    begin, end = '{"type":"sequence","elements":[', "]}"
    return Hostile("structural_tag", begin * depth + '{"type":"const_string","value":"a"}' + end * depth)


def nested_alternatives(depth: int) -> Hostile:
    begin, end = '{"type":"or","elements":[', "]}"
    return Hostile("structural_tag", begin * depth + '{"type":"const_string","value":"a"}' + end * depth)


def lark_rule_chain(rules: int) -> Hostile:
    chain = "\n".join(f"r{i}: r{i + 1}" for i in range(rules))
    return Hostile("grammar", f'start: r0\n{chain}\nr{rules}: "a"')


def lark_terminal_chain(terminals: int) -> Hostile:
    chain = "\n".join(f"T{i}: T{i + 1}" for i in range(terminals))
    return Hostile("grammar", f'start: T0\n{chain}\nT{terminals}: "a"')


def lark_groups(depth: int) -> Hostile:
    return Hostile("grammar", f'start: {"(" * depth}"a"{")" * depth}')


def lark_optionals(depth: int) -> Hostile:
    return Hostile("grammar", f'start: {"[" * depth}"a"{"]" * depth}')


def lark_schema(depth: int) -> Hostile:
    """A deep JSON schema inside a grammar."""
    return Hostile("grammar", f"start: %json {_items(depth)}")


def lark_schema_references(links: int) -> Hostile:
    return Hostile("grammar", f"start: %json {reference_chain(links).text}")


def lark_regex_groups(depth: int) -> Hostile:
    return Hostile("grammar", f"start: /{'(' * depth}a{')' * depth}/")


def gbnf_rule_chain(rules: int) -> Hostile:
    chain = "\n".join(f"r{i} ::= r{i + 1}" for i in range(rules))
    return Hostile("grammar", f'root ::= r0\n{chain}\nr{rules} ::= "a"')


def gbnf_groups(depth: int) -> Hostile:
    return Hostile("grammar", f'root ::= {"(" * depth}"a"{")" * depth}')


def regex_groups(depth: int) -> Hostile:
    return Hostile("regex", "(" * depth + "a" + ")" * depth)


def pattern_groups(depth: int) -> Hostile:
    return _schema({"type": "string", "pattern": "(" * depth + "a" + ")" * depth})


def _items(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


DEEP: dict[str, Callable[[int], Hostile]] = {
    "references": reference_chain,
    "references in properties": property_reference_chain,
    "references in allOf": all_of_reference_chain,
    "references in items": item_reference_chain,
    "arrays": _nested('{"type":"array","items":', "{}", "}"),
    "arrays in tuples": _nested('{"type":"array","prefixItems":[', "{}", "]}"),
    "objects": _nested('{"type":"object","properties":{"a":', "{}", "}}"),
    "free names": _nested('{"additionalProperties":', "{}", "}"),
    "anyOf": _nested('{"anyOf":[', "{}", "]}"),
    "allOf": _nested('{"allOf":[', "{}", "]}"),
    "oneOf": _nested('{"oneOf":[', "{}", "]}"),
    "not": _nested('{"not":', "{}", "}"),
    "if": _nested('{"if":', "{}", "}"),
    "constant": lambda depth: Hostile("json_schema", f'{{"const":{"[" * depth}{"]" * depth}}}'),
    "annotation": lambda depth: Hostile("json_schema", f'{{"default":{"[" * depth}{"]" * depth}}}'),
    "tags": nested_tags,
    "sequences": nested_sequences,
    "alternatives": nested_alternatives,
    "Lark rules": lark_rule_chain,
    "Lark terminals": lark_terminal_chain,
    "Lark groups": lark_groups,
    "Lark optionals": lark_optionals,
    "%json": lark_schema,
    "%json references": lark_schema_references,
    "Lark regex groups": lark_regex_groups,
    "GBNF rules": gbnf_rule_chain,
    "GBNF groups": gbnf_groups,
    "regex groups": regex_groups,
    "pattern groups": pattern_groups,
}
"""By name, grammars of any depth."""


def nested_repetitions(number: int) -> Hostile:
    """Each number gives another grammar of the same cost: a million characters, and copies of them."""
    return Hostile("regex", f"(x{{1000}}){{1000}}<{number}>")


def intersected_patterns(number: int) -> Hostile:
    """The product of 25 automata of some 30 states each."""
    patterns = [{"pattern": f"^(.*{chr(97 + i)}.{{{20 + i % 7}}}){{2}}"} for i in range(25)]
    return _schema({"type": "string", "allOf": patterns, "title": str(number)})


def many_subsets(number: int) -> Hostile:
    return Hostile("regex", f"(a|b)*a(a|b){{{30 + number % 1000}}}")


def many_subsets_in_lark(number: int) -> Hostile:
    return Hostile("grammar", f"start: /(a|b)*a(a|b){{{30 + number % 1000}}}/")


def ambiguous_lark(number: int) -> Hostile:
    """Every text has exponentially many parses."""
    return Hostile("grammar", f'start: e "{number}"\ne: e e e | e e | "a" |')


def many_alternatives(number: int) -> Hostile:
    """Objects of which each allows all names of all others."""
    names = {f"p{i}": {"type": "string", "maxLength": 50_000 + number + i} for i in range(40)}
    return _schema({"anyOf": [{"properties": names, "required": [name]} for name in names]})


def exclusive_alternatives(number: int) -> Hostile:
    parts = [{"pattern": f"a.{{{i}}}b"} for i in range(number % 100 + 12)]
    return _schema({"type": "string", "oneOf": parts})


def many_items(number: int) -> Hostile:
    inner: object = {"type": "integer"}
    for _ in range(6):
        inner = {"type": "array", "items": inner, "minItems": 1000, "maxItems": 1000 + number}
    return _schema(inner)


def doubling_definitions(number: int) -> Hostile:
    """Each definition names the next one twice: two to the power of 40 paths."""
    definitions: dict[str, object] = {
        str(i): {"type": "array", "prefixItems": [{"$ref": f"#/$defs/{i + 1}"}] * 2, "minItems": 2}
        for i in range(40)
    }
    return _schema({"$defs": {**definitions, "40": {"const": number}}, "$ref": "#/$defs/0"})


def long_choice(number: int) -> Hostile:
    return Hostile("choice", json.dumps([f"{number} {i} {'x' * (i % 90)}" for i in range(9_000)]))


def wide_object(number: int) -> Hostile:
    properties = {f"p{i}": {"type": "integer", "minimum": i + number} for i in range(4_000)}
    return _schema({"type": "object", "properties": properties, "required": list(properties)})


def big_numbers(number: int) -> Hostile:
    return _schema({"type": "number", "multipleOf": 1e-300, "minimum": number, "maximum": 1e300})


EXPLODING: dict[str, Callable[[int], Hostile]] = {
    "nested repetitions": nested_repetitions,
    "intersected patterns": intersected_patterns,
    "many subsets": many_subsets,
    "many subsets in Lark": many_subsets_in_lark,
    "ambiguous Lark": ambiguous_lark,
    "many alternatives": many_alternatives,
    "exclusive alternatives": exclusive_alternatives,
    "many items": many_items,
    "doubling definitions": doubling_definitions,
    "long choice": long_choice,
    "wide object": wide_object,
    "big numbers": big_numbers,
}
"""By name, grammars that are flat and small but cost much time or memory; each number gives another one."""

SINGLE: dict[str, Callable[[], Hostile]] = {
    "the chain that ended a server": lambda: reference_chain(2_500),
    **{name: (lambda make=make: make(0)) for name, make in EXPLODING.items()},  # type: ignore[misc]
}


def _schema(schema: object) -> Hostile:
    return Hostile("json_schema", json.dumps(schema, separators=(",", ":")))
