"""Grammars that can't be used, in words for whoever sent them."""

from __future__ import annotations


class GrammarError(ValueError):
    """A grammar that is wrong or that can't be enforced. The message names the part and its path."""


class TooLargeError(Exception):
    """An automaton over the limits of states, bytes or time. Another engine may still serve the grammar."""
