"""Each slot's page table and length: the pages of its tokens, in order, and how many of them have KV."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ...kernels.common.step_tokens import StepTokens
from ..messages import TOKEN_BYTES, Row
from .interface.cache_spec import ALL_LAYERS, PageGroup

CPU = torch.device("cpu")


class PageTables:
    """A table only grows until it is cleared. Reading several slots is one array operation.

    Each group of layers has its own table of each slot, all with the same positions. A windowed group's table
    has the id 0, or one that is no longer valid, for pages behind the window.

    lengths: int64 [slots], how many of a slot's tokens have KV once the steps so far have run, without drafts
        of which it is not known yet whether they are kept
    on_device: int32 [groups × slots × pages of a slot], the tables as kernels read them: on a CPU the same
        memory, otherwise a copy that `write` updates
    """

    def __init__(
        self,
        slots: int,
        max_model_len: int,
        page_size: int,
        device: torch.device = CPU,
        groups: Sequence[PageGroup] = ALL_LAYERS,
    ) -> None:
        self.page_size, self.groups = page_size, groups
        self._pages = np.zeros((len(groups), slots, -(-max_model_len // page_size)), np.int32)
        self._counts = np.zeros((len(groups), slots), np.int64)
        self.lengths = np.zeros(slots, np.int64)
        self.on_device = torch.from_numpy(self._pages).view(-1).to(device)
        self._is_copy = device != CPU
        self._new: list[tuple[int, NDArray[np.int32]]] = []

    def clear(self, slot: int) -> None:
        self._counts[:, slot] = self.lengths[slot] = 0

    def append(self, slot: int, pages: NDArray[np.int32], group: int = 0) -> int:
        """Adds pages to the slot's table. Returns how many tokens all its pages hold."""
        start = self._counts[group, slot]
        self._counts[group, slot] = start + len(pages)
        self._pages[group, slot, start : start + len(pages)] = pages
        if self._is_copy:
            self._new.append((int(self.starts(np.array([slot]), group)[0] + start), pages))
        return int(self._counts[group, slot]) * self.page_size

    def table(self, slot: int, group: int = 0) -> NDArray[np.int32]:
        """The slot's page table: a view, which shows later changes."""
        return self._pages[group, slot, : self._counts[group, slot]]

    def find_written(self, row: Row, group: int = 0) -> NDArray[np.int32]:
        """A view of the group's pages that the row of the next step writes."""
        start = row.start if row.tokens else int(self.lengths[row.slot])
        end = start + max(1, len(row.tokens) // TOKEN_BYTES) + max(0, row.samples - 1)
        return self.table(row.slot, group)[start // self.page_size : -(-end // self.page_size)]

    def starts(self, slots: NDArray[np.int64], group: int = 0) -> NDArray[np.int64]:
        """Where the tables of these slots begin in `on_device`."""
        _, num_slots, pages = self._pages.shape
        return (slots + group * num_slots) * pages

    def extend(
        self,
        slots: NDArray[np.int64],
        starts: NDArray[np.int64],
        given: NDArray[np.int64],
        drafts: NDArray[np.int32] | None = None,
    ) -> StepTokens:
        """Extends the slots' lengths by a step's rows. Returns the rows' tokens (`StepTokens.of`).

        A row with `given` 0 is in decode: its first token is the slot's last one, at the slot's length, and
        its `drafts` follow. Any other row has `given` tokens, the first at its `starts`. Each token's page is
        already in the table. `accept` adds the drafts that are kept to the length.
        """
        drafts = np.zeros(len(slots), np.int32) if drafts is None else drafts
        starts = np.where(given > 0, starts, self.lengths[slots])
        tokens = StepTokens.of(slots, starts, given, drafts, self._pages[0], self._counts[0], self.page_size)
        self.lengths[slots] = starts + tokens.lengths - drafts
        return tokens

    def extend_decode(self, slots: NDArray[np.int64], drafts: NDArray[np.int32]) -> StepTokens:
        """As `extend`, for rows in decode."""
        starts, given = self.lengths[slots], np.zeros(len(slots), np.int64)
        self.lengths[slots] = starts + 1
        return StepTokens.of(slots, starts, given, drafts, self._pages[0], self._counts[0], self.page_size)

    def accept(self, slots: NDArray[np.int32], more: NDArray[np.int32]) -> None:
        """Makes distinct slots `more` tokens longer, one for each of their drafts that were kept; -1: their
        last token must be computed again."""
        self.lengths[slots] += more

    def places(self, slots: NDArray[np.int64], tokens: StepTokens) -> list[NDArray[np.int64]]:
        """The places of the tokens in each group. slots: of the rows"""
        if len(self.groups) == 1:
            return [tokens.places]
        rows, (indices, offsets) = (
            np.repeat(slots, tokens.lengths),
            np.divmod(tokens.positions, self.page_size),
        )
        return [
            tokens.places,
            *(pages[rows, indices].astype(np.int64) * self.page_size + offsets for pages in self._pages[1:]),
        ]

    def take_new(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Returns changes that the device lacks: indices into `on_device`, and the pages to write there."""
        new, self._new = self._new, []
        if not new:
            return np.zeros(0, np.int64), np.zeros(0, np.int32)
        indices = [np.arange(start, start + len(pages)) for start, pages in new]
        return np.concatenate(indices), np.concatenate([pages for _, pages in new])

    def write(self, indices: torch.Tensor, pages: torch.Tensor) -> None:
        """Writes what `take_new` returned, moved to the device."""
        if len(indices):
            self.on_device[indices] = pages
