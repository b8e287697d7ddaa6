"""Reads arrays: the rest of a goal after each item."""

from __future__ import annotations

from ..read.formula import Atom, Contains, Distinct, Formula, ItemFits, Items, MinItems
from ..read.formulas import Formulas
from ..read.uniqueness import after_distinct
from .nodes import Container, Edge, Node
from .outcomes import Goal, outcomes
from .value_graph import ValueGraph


def read_array(graph: ValueGraph, array: Container) -> None:
    """Makes the nodes of an array, beginning at its start."""
    array.start = _node(graph, array, array.goal)
    pending = [array.start]
    while pending:
        node = pending.pop()
        known = len(array.nodes)
        _read(graph, array, node)
        pending += list(array.nodes.values())[known:]


def _node(graph: ValueGraph, array: Container, goal: Goal) -> Node:
    key = (goal, 0)
    node = array.nodes.get(key)
    if node is None:
        node = array.nodes[key] = Node(key)
        graph.count(1, 1)
    return node


def _read(graph: ValueGraph, array: Container, node: Node) -> None:
    make = graph.formulas
    goal = node.key[0]
    ended = [make.rewrite(formula, "ended", lambda atom: _end(make, atom)) for formula in goal]
    node.verdict = next((number for number, formula in enumerate(ended) if formula is make.true), -1)
    taken = tuple(make.rewrite(formula, "item", lambda atom: _after_item(make, atom)) for formula in goal)
    ways = outcomes(graph.document, taken)
    if ways:
        targets = tuple(_node(graph, array, left) for _, left in ways)
        node.edges = [Edge(None, graph.value(condition for condition, _ in ways), targets)]


def _end(make: Formulas, atom: Atom) -> Formula:
    return make.true if isinstance(atom.fact, (Items, Distinct)) else make.false


def _after_item(make: Formulas, atom: Atom) -> Formula:
    match atom.fact:
        case MinItems(count):
            return make.atom(MinItems(count - 1)) if count > 1 else make.true
        case Items(first, end, child):
            return _after_position(make, first, end, child)
        case Distinct(values):
            return after_distinct(make, values)
        case Contains(child, count):
            found = make.atom(ItemFits(child))
            fewer = make.atom(Contains(child, count - 1)) if count > 1 else make.true
            return make.any_of([make.all_of([found, fewer]), make.all_of([make.negation(found), atom])])
    raise AssertionError(f"{atom.fact} is no fact about arrays")


def _after_position(make: Formulas, first: int, last: int | None, child: Formula) -> Formula:
    """`Items(first, last, child)` after the item at position 0."""
    end = None if last is None else last - 1
    later = make.true if end == 0 else make.atom(Items(max(first - 1, 0), end, child))
    return later if first else make.all_of([make.atom(ItemFits(child)), later])
