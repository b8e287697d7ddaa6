"""Saves of pages from the launch of their copies until the page store can find them."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from ...messages import DiscardPages, ForgetPages
from .copy_streams import Copies
from .host_pool import Entry, split_keys
from .page_store import PageStore


@dataclass(eq=False)
class Save:
    """Consecutive pages that are copied to host memory together."""

    pages: Set[int]
    entries: list[Entry]
    copies: Copies
    forgotten: list[Entry] = field(default_factory=list)
    """entries whose places are freed after the copies, and which are never published"""

    def forget(self, matches: Callable[[Entry], bool]) -> None:
        self.forgotten += [entry for entry in self.entries if matches(entry)]
        self.entries = [entry for entry in self.entries if not matches(entry)]


class Saves:
    """The saves that are not published yet."""

    def __init__(self, store: PageStore) -> None:
        self._store = store
        self._open: list[Save] = []
        self._begun: list[Save] = []
        """those that no step publishes yet"""

    def add(self, save: Save) -> None:
        self._open.append(save)
        self._begun.append(save)

    @property
    def begun(self) -> bool:
        return bool(self._begun)

    def take_begun(self) -> list[Save]:
        """The saves since the last call, for `publish`."""
        begun, self._begun = self._begun, []
        return begun

    def copied(self) -> bool:
        """Whether the copies of those saves are complete."""
        return all(save.copies.ready() for save in self._begun)

    def running(self) -> list[Save]:
        """The saves whose copies are not complete: their pages must not be written yet."""
        return [save for save in self._open if not save.copies.ready()]

    def forget(self, message: ForgetPages | DiscardPages) -> None:
        """Publishes none of these pages."""
        if isinstance(message, DiscardPages):
            keys = set(split_keys(message.keys))
            matches: Callable[[Entry], bool] = lambda entry: entry.key in keys  # noqa: E731
        else:
            matches = lambda entry: entry.matches(message.scope, message.namespace)  # noqa: E731
        for save in self._open:
            save.forget(matches)

    def publish(self, saves: Sequence[Save]) -> None:
        """Lets the page store find these pages. Waits for their copies."""
        for save in saves:
            save.copies.wait()
            self._open.remove(save)
            self._store.saved(save.entries)
            self._store.pool.release(save.forgotten)
