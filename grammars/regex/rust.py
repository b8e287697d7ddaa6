"""Writes the regexes of schemas for llguidance, in the syntax of Rust and for whole texts."""

from __future__ import annotations

from collections.abc import Iterable

from .ecma import RegexError, parse
from .nodes import Anchor, Characters, Choice, LookAhead, Node, Repeat, Sequence
from .ranges import Ranges

_ANY = r"[\x{0}-\x{10FFFF}]"
_NONE = rf"[^{_ANY[1:]}"
_SURROGATES = (0xD800, 0xDFFF)


def convert_to_rust(pattern: str) -> str:
    """A regex of Rust for the texts in which the pattern is found. Raises RegexError."""
    node = parse(pattern)
    try:
        return f"^(?:{_pad(node)})$"
    except _UnwrittenError as error:
        raise RegexError(pattern, f"has {error}, which only automata follow") from None
    except RecursionError:
        raise RegexError(pattern, "is nested too deep") from None


class _UnwrittenError(Exception):
    pass


def _pad(node: Node) -> str:
    """The node with any text before and after it, unless an anchor forbids that."""
    if isinstance(node, Choice):
        return "|".join(map(_pad, node.branches))
    parts = list(_flat(node))
    before = after = f"{_ANY}*"
    while parts and parts[0] == Anchor("^"):
        before = ""
        del parts[0]
    while parts and parts[-1] == Anchor("$"):
        after = ""
        del parts[-1]
    if len(parts) == 1 and isinstance(parts[0], Choice) and before and after:
        return _pad(parts[0])
    return before + "".join(map(_write, parts)) + after


def _flat(node: Node) -> Iterable[Node]:
    if isinstance(node, Sequence):
        for part in node.parts:
            yield from _flat(part)
    else:
        yield node


def _write(node: Node) -> str:
    match node:
        case Characters(ranges):
            return _class(ranges)
        case Sequence(parts):
            return "".join(map(_write, parts))
        case Choice(branches):
            return f"(?:{'|'.join(map(_write, branches))})"
        case Repeat(part, least, most):
            return f"(?:{_write(part)}){{{least},{'' if most is None else most}}}"
        case LookAhead():
            raise _UnwrittenError("look-ahead")
        case Anchor(letter):
            raise _UnwrittenError(f"a {letter} between other parts")


def _class(ranges: Ranges) -> str:
    first, last = _SURROGATES
    kept = [
        part for low, high in ranges for part in ((low, min(high, first - 1)), (max(low, last + 1), high))
    ]
    written = "".join(rf"\x{{{low:X}}}-\x{{{high:X}}}" for low, high in kept if low <= high)
    return f"[{written}]" if written else _NONE
