"""The values of one schema, made when they are needed."""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import TooLargeError
from ..read.document import SchemaDocument
from ..read.formula import Formula
from .free_order import FreeOrder
from .nodes import Value
from .outcomes import Goal
from .scalars import Scalars

MAX_NODES = 20_000
MAX_EDGES = 200_000


class ValueGraph:
    """Has one value for each goal. A new value is unread until the solver takes it."""

    def __init__(self, document: SchemaDocument, scalars: Scalars, *, any_order: bool) -> None:
        self.document = document
        self.formulas = document.formulas
        self.scalars = scalars
        self.any_order = any_order
        self.free_order = FreeOrder()
        self._values: dict[Goal, Value] = {}
        self._unread: list[Value] = []
        self._size = 0

    def value(self, formulas: Iterable[Formula]) -> Value:
        """The value whose goal is these formulas."""
        goal = tuple(self.document.expanded(formula) for formula in formulas)
        known = self._values.get(goal)
        if known is None:
            known = self._values[goal] = Value(goal)
            self._unread.append(known)
        return known

    @property
    def unread(self) -> int:
        """The number of unread values."""
        return len(self._unread)

    def take_unread(self) -> Value | None:
        """Returns the newest unread value, which then counts as read."""
        return self._unread.pop() if self._unread else None

    def forget_after(self, unread: int) -> None:
        """Drops all unread values but the first `unread` ones. Nothing may refer to them."""
        for value in self._unread[unread:]:
            del self._values[value.goal]
        del self._unread[unread:]

    def count(self, nodes: int, edges: int) -> None:
        """Adds to the counts of nodes and edges. Raises TooLargeError beyond `MAX_NODES` or `MAX_EDGES`."""
        self._size += nodes * (MAX_EDGES // MAX_NODES) + edges
        if self._size > MAX_EDGES:
            raise TooLargeError(f"more than {MAX_NODES} nodes or {MAX_EDGES} members")
