"""The pages that requests hold. They are recorded only while invariants are checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .page_allocator import PageAllocator


class HeldPages:
    def __init__(self, allocator: PageAllocator, is_checked: bool) -> None:
        self._allocator = allocator
        self._is_checked = is_checked
        self.pages: set[int] = set()
        """empty unless checked"""

    def add(self, pages: Iterable[int]) -> None:
        """Requests hold these pages from now on."""
        if self._is_checked:
            self.pages.update(pages)

    def remove(self, pages: Iterable[int]) -> None:
        """The pages go to the tree, or are freed."""
        if self._is_checked:
            assert self.pages.issuperset(pages), "the pages are not held by requests"
            self.pages.difference_update(pages)

    def free(self, pages: Sequence[int]) -> None:
        self.remove(pages)
        self._allocator.free(pages)
