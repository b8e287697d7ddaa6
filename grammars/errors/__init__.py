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
    """A grammar over the limits of states, bytes or time. Another engine may still serve it.

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
        super().__init__(keyword, path, reason)
        self.keyword = keyword
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"the schema's keyword {self.keyword!r} at {self.path} {self.problem}: {self.reason}{self.advice}"
        )


class WrongKeywordError(NotCoveredError):
    """A keyword with a meaningless value; it is never left out. Another engine may be more lenient."""

    problem = "is wrong"
    advice = ""


class ProcessEndedError(CompilerError):
    """The grammar's process ended by itself, perhaps because of the grammar, which is then refused for some
    minutes."""


class BusyError(Exception):
    """The server follows as many grammars as it can. The client may send the request again."""


Expected: TypeAlias = GrammarError | TooLargeError | CompilerError | BusyError
"""the errors that a grammar may cause, which need no traceback"""

Kind = TypeVar("Kind", bound=Exception)


def bare_copy(error: Kind) -> Kind:
    """A copy of the error without its frames, which would keep a process and a grammar's text alive."""
    copied = copy(error)
    copied.__traceback__ = copied.__cause__ = copied.__context__ = None
    return copied


class Fault(Struct, array_like=True, frozen=True):
    """An error of this module as data, for messages of a process that has read a client's grammar."""

    name: str
    arguments: tuple[str, ...]
    function: str = ""


_SENT: dict[str, type[Exception]] = {
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


def encode_error(error: Exception) -> Fault:
    """The data of an error. For an error of another class, sends the nearest base class of this module."""
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _SENT)
    arguments = error.args if isinstance(error, NotCoveredError) else (str(error),)
    return Fault(name, arguments, getattr(error, "function", ""))


def decode_error(fault: Fault) -> Exception:
    """The error with this data. Raises ValueError if there is no such error."""
    try:
        error = _SENT[fault.name](*fault.arguments)
    except (KeyError, TypeError):
        raise ValueError(f"{fault.name} is no error of a grammar's") from None
    if isinstance(error, GrammarError | TooLargeError):
        error.function = fault.function
    return error
