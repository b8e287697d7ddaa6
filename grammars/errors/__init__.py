"""Errors of grammars, in words for the client."""

from __future__ import annotations

from copy import copy
from typing import TypeAlias, TypeVar

from msgspec import Struct


class GrammarError(ValueError):
    """A grammar that is wrong or can't be enforced. The message names the part and its path.

    `function`: the name of the function whose parameters are at fault, if any.
    """

    function = ""


class NoValueError(GrammarError):
    """A schema that allows no value that automata can write. Another engine may write longer numbers."""


class TooLargeError(Exception):
    """An automaton over the limits of states, bytes or time. Another engine may still serve the grammar.

    `function`: as in `GrammarError`.
    """

    function = ""


class ParserFailedError(GrammarError):
    """llguidance's parser failed. Its process can't be used for this grammar any more."""


class CompilerError(Exception):
    """Our compiler failed; the grammar may be right. Another engine may still serve it."""


class NotCoveredError(GrammarError):
    """A keyword without an automaton. The message names the keyword and its path in the schema."""

    problem = "can't be enforced"
    advice = '. To leave it out, send "unenforced": "allow" in the request.'

    def __init__(self, keyword: str, path: str, reason: str) -> None:
        super().__init__(f"the schema's keyword {keyword!r} at {path} {self.problem}: {reason}{self.advice}")
        self.keyword = keyword
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type[NotCoveredError], tuple[str, str, str], dict[str, str]]:
        return type(self), (self.keyword, self.path, self.reason), vars(self)


class WrongKeywordError(NotCoveredError):
    """A keyword with a meaningless value; it is never left out. Another engine may be more lenient."""

    problem = "is wrong"
    advice = ""


class ProcessEndedError(CompilerError):
    """The grammar's process ended by itself, perhaps because of the grammar, which is refused for some
    minutes."""


class TooSlowError(TimeoutError):
    """The grammar used the processor time itself. A plain TimeoutError may be the machine's fault."""


class BusyError(Exception):
    """The server follows as many grammars as it can. The request may be sent again."""


Expected: TypeAlias = GrammarError | TooLargeError | CompilerError | BusyError | TimeoutError
"""The errors that a grammar may lead to, which need no traceback."""

Kind = TypeVar("Kind", bound=Exception)


def bare_copy(error: Kind) -> Kind:
    """A copy without the frames that raised the error, as they keep a process and a grammar's text alive."""
    copied = copy(error)
    copied.__traceback__ = copied.__cause__ = copied.__context__ = None
    return copied


class Fault(Struct, array_like=True, frozen=True):
    """An error of this module as data, for a process whose pickles are not trusted."""

    name: str
    arguments: tuple[str, ...]
    function: str = ""


_ERRORS: dict[str, type[Exception]] = {
    error.__name__: error
    for error in (
        GrammarError,
        NoValueError,
        ParserFailedError,
        TooLargeError,
        CompilerError,
        NotCoveredError,
        WrongKeywordError,
    )
}


def fault_of(error: Exception) -> Fault:
    """The data of an error of this module."""
    function = getattr(error, "function", "")
    if isinstance(error, NotCoveredError):
        return Fault(type(error).__name__, (error.keyword, error.path, error.reason), function)
    return Fault(type(error).__name__, (str(error),), function)


def reply_error(fault: Fault) -> GrammarError | CompilerError:
    """The error of a reply whose grammar can't be followed further."""
    error = error_of(fault)
    return error if isinstance(error, GrammarError | CompilerError) else GrammarError(str(error))


def error_of(fault: Fault) -> Exception:
    """The error with this data. Raises ValueError if there is no such error."""
    kind = _ERRORS.get(fault.name)
    if kind is None or len(fault.arguments) != (3 if issubclass(kind, NotCoveredError) else 1):
        raise ValueError(f"{fault.name} is no error of a grammar's")
    error = kind(*fault.arguments)
    if isinstance(error, GrammarError | TooLargeError):
        error.function = fault.function
    return error
