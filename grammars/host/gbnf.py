"""Converts grammars in GBNF to Lark."""

from __future__ import annotations

import re

from llguidance.gbnf_to_lark import gbnf_to_lark

from ..errors import GrammarError

_LARK = re.compile(r"\s*(%llguidance\b|start\s*:(?!:=))")
_START_RULE = re.compile(r'("(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#.*)|(?<![\w-])start(?![\w-])')
"""A GBNF rule with the name that the converter gives to the first rule. The group matches text that is no
rule.
"""


def convert_to_lark(text: str) -> str:
    """Returns a grammar in Lark as it is, and converts one in GBNF. Raises GrammarError."""
    if any(map(_LARK.match, text.split("\n"))):
        return text
    try:
        return gbnf_to_lark(_START_RULE.sub(lambda found: found[1] or "start-rule", text))
    except RecursionError:
        raise GrammarError("its groups are nested too deep: name the inner ones as rules") from None
    except Exception as error:  # the converter raises plain Exceptions
        raise GrammarError(_explain(text, str(error))) from None


def _explain(text: str, fault: str) -> str:
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
