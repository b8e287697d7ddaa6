"""Regexes as automata over code points, with ECMA-262's search semantics and anchors in any position."""

from __future__ import annotations

from functools import lru_cache

from .dfa import Dfa, complement, intersect
from .ecma import parse
from .look_ahead import determinize
from .nfa import Nfa
from .nodes import Anchor, LookAhead, Node, Sequence
from .ranges import EVERYTHING


@lru_cache(512)
def compile_search(pattern: str) -> Dfa:
    """The automaton of the texts that contain a match. Raises RegexError."""
    node, ahead = _without_leading_look_ahead(parse(pattern))
    dfa = _automaton(node, anywhere=True)
    for look in ahead:
        begins = _automaton(Sequence((Anchor("^"), look.part)), anywhere=True)
        dfa = intersect(dfa, complement(begins) if look.is_negative else begins)
    return dfa


@lru_cache(512)
def compile_match(pattern: str) -> Dfa:
    """The automaton of the texts that match as a whole."""
    return _automaton(parse(pattern), anywhere=False)


def _without_leading_look_ahead(node: Node) -> tuple[Node, list[LookAhead]]:
    """The regex without look-ahead directly after a `^` at the start; each such look-ahead becomes an
    intersection, which is faster than following it beside the rest."""
    parts = node.parts if isinstance(node, Sequence) else ()
    ahead: list[LookAhead] = []
    if parts[:1] == (Anchor("^"),):
        for part in parts[1:]:
            if not isinstance(part, LookAhead):
                break
            ahead.append(part)
    return (Sequence((parts[0], *parts[1 + len(ahead) :])), ahead) if ahead else (node, [])


def _automaton(node: Node, *, anywhere: bool) -> Dfa:
    nfa = Nfa()
    start, end = nfa.node(), nfa.node()
    if anywhere:
        nfa.move(start, EVERYTHING, start)
        nfa.move(end, EVERYTHING, end)
    first, last = nfa.node(), nfa.node()
    nfa.jump(start, first)
    nfa.add(node, first, last)
    nfa.jump(last, end)
    return determinize(nfa, start, end)
