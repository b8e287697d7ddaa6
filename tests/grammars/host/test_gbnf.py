"""The errors for a grammar that is neither Lark nor GBNF, or is wrong GBNF."""

from __future__ import annotations

import pytest
from arbora.grammars.errors import GrammarError
from arbora.grammars.host.gbnf import convert_to_lark


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ("root ::= foo", "in GBNF, rule 'foo' is used but not defined"),
        ("%%%", "the grammar is neither Lark nor GBNF: it has no rule, such as `start: "),
        ('root = "a"', "the grammar is neither Lark nor GBNF: it has no rule, such as `start: "),
        (
            'root ::= "a" (',
            "the grammar is wrong GBNF in line 1: expected ')' after 'root ::= \"a\" (', where ",
        ),
        ("root ::= ) a", "the grammar is wrong GBNF in line 1: expected "),
        (f'root ::= {"(" * 2_500}"a"{")" * 2_500}', "its groups are nested too deep: name "),
    ],
)
def test_wrong_gbnf_is_refused_in_one_readable_line(grammar: str, said: str) -> None:
    with pytest.raises(GrammarError) as refused:
        convert_to_lark(grammar)
    assert str(refused.value).startswith(said)
    assert "^" not in str(refused.value) and "\n" not in str(refused.value)
