"""The language's errors."""

from __future__ import annotations


class ProgramError(Exception):
    """A statement of a program failed. The message names it; `__cause__` is the backend's error, if any."""


class UnknownNameError(ProgramError, KeyError):
    """A program reads the value of a name that no call has."""

    __str__ = Exception.__str__  # KeyError's shows the message as a quoted string


class BackendError(Exception):
    """The backend can't be reached, or did not answer a call."""


class NoServerError(BackendError):
    """No server has answered at the backend's address."""
