"""Grammars that can't be used, in words for whoever sent them."""

from __future__ import annotations


class GrammarError(ValueError):
    """A grammar that is wrong or that can't be enforced. The message names the part and its path.

    `function` is the one whose parameters are at fault, if they are a function's.
    """

    function = ""


class NoValueError(GrammarError):
    """A schema that allows no value which automata can spell. Another engine may know longer numbers."""


class TooLargeError(Exception):
    """An automaton over the limits of states, bytes or time. Another engine may still serve the grammar.

    `function` as of a `GrammarError`.
    """

    function = ""


class CompilerError(Exception):
    """Our compiler failed, which says nothing of the grammar. Another engine may still serve it."""


class NotCoveredError(GrammarError):
    """A keyword that has no automaton. The message names the keyword and its path in the schema."""

    problem = "can't be enforced"
    advice = '. With "unenforced": "allow" it is left out'

    def __init__(self, keyword: str, path: str, reason: str) -> None:
        super().__init__(f"the schema's keyword {keyword!r} at {path} {self.problem}: {reason}{self.advice}")
        self.keyword = keyword
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type[NotCoveredError], tuple[str, str, str], dict[str, str]]:
        return type(self), (self.keyword, self.path, self.reason), vars(self)


class WrongKeywordError(NotCoveredError):
    """A keyword whose value makes no sense: it is never left out. Another engine may be more lenient."""

    problem = "is wrong"
    advice = ""
