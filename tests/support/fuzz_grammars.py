"""Random regexes, Lark grammars and structural tags: most are right, some are not."""

from __future__ import annotations

import random
from typing import Any

from fuzz_schemas import schema

_ATOMS = ("a", "é", "[a-z]", "[^x]", ".", "\\d", "\\w", "\\s", "\\.", "(?i:b)", "\\u00e9", "[\\]-]", "日")
_ODD = (
    "\\b",
    "(?=a)",
    "\\1",
    "(?P<x>a)",
    "\\p{L}",
    "(?<!a)",
    "a++",
    "(?>a)",
    "[z-a]",
    "(",
    "[",
    "\\",
    "\x00",
)
_REPEATS = ("", "", "", "?", "*", "+", "{2}", "{1,3}", "{0,40}", "*?", "{3,1}", "{,2}", "{2000}")
_SPECIAL = ("<|im_end|>", "<tool_call>", "</tool_call>", "<function=", "{", "END")


def regex(rng: random.Random, depth: int = 2) -> str:
    def atom() -> str:
        if depth > 0 and rng.random() < 0.3:
            return rng.choice(("(", "(?:")) + regex(rng, depth - 1) + ")"
        return rng.choice(_ODD if rng.random() < 0.04 else _ATOMS)

    branches = ["".join(atom() + rng.choice(_REPEATS) for _ in range(rng.randint(1, 4)))]
    if rng.random() < 0.3:
        branches.append("".join(atom() for _ in range(rng.randint(0, 3))))
    return "|".join(branches)


def lark(rng: random.Random) -> str:
    """A start rule, up to four others and two terminals; a rule may be missing or refer to itself."""
    count = rng.randint(0, 4)
    rules = [f"r{number}" for number in range(count + rng.randint(0, 1))]
    symbols = [*rules, "A", "B", '"x"', '"é"i', "/[0-9]+/", '("y" | "z")', "%json {}", "r0", "start"]

    def production() -> str:
        parts = (
            rng.choice(symbols) + rng.choice(("", "", "?", "*", "+", "~2")) for _ in range(rng.randint(1, 3))
        )
        return " ".join(parts)

    def body() -> str:
        return " | ".join(production() for _ in range(rng.randint(1, 3)))

    lines = [f"start: {body()}", *(f"r{number}: {body()}" for number in range(count))]
    lines += [f"A: /{regex(rng, 1)}/", 'B: "b" | "c"', rng.choice(("", "%ignore / /", "%import common.INT"))]
    return "\n".join(lines)


def gbnf(rng: random.Random) -> str:
    return rng.choice(
        ('root ::= "a" | "b" root', "root ::= [a-z]+ item?\nitem ::= [0-9]{1,3}", "root ::= missing")
    )


def tag_format(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """A part of a structural tag."""

    def tags() -> list[Any]:
        return [tag(rng, depth - 1) for _ in range(rng.randint(1, 2))]

    flags = {"at_least_one": rng.random() < 0.5, "stop_after_first": rng.random() < 0.5}
    kinds = ["const_string", "json_schema", "regex", "any_text"]
    if depth > 0:
        kinds += ["sequence", "or", "tag", "triggered_tags", "tags_with_separator"]
    match rng.choice(kinds):
        case "const_string":
            return {"type": "const_string", "value": rng.choice((*_SPECIAL, "", "text"))}
        case "json_schema":
            return {"type": "json_schema", "json_schema": schema(rng, 1)}
        case "regex":
            return {"type": "regex", "pattern": regex(rng, 1)}
        case "any_text":
            return {"type": "any_text"}
        case "tag":
            return tag(rng, depth - 1)
        case "triggered_tags":
            found = tags()
            return {
                "type": "triggered_tags",
                "triggers": [each["begin"] for each in found],
                "tags": found,
                **flags,
            }
        case "tags_with_separator":
            return {
                "type": "tags_with_separator",
                "tags": tags(),
                "separator": rng.choice((",", "", "\n")),
                **flags,
            }
        case kind:
            return {"type": kind, "elements": [tag_format(rng, depth - 1) for _ in range(rng.randint(1, 3))]}


def tag(rng: random.Random, depth: int) -> dict[str, Any]:
    begin = rng.choice(_SPECIAL) + rng.choice(("", "a", "b>"))
    return {"type": "tag", "begin": begin, "content": tag_format(rng, depth), "end": rng.choice(_SPECIAL)}
