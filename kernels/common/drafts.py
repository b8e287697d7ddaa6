"""Draft tokens of a step: guesses of the tokens that follow a slot's last one.

A slot with k drafts samples at 1 + k rows: after its last token, and after each draft. A row's token is kept
if all drafts before the row equal the tokens that were sampled in their places.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .jit import compiled

NO_DRAFT = -1


class Drafts(NamedTuple):
    """The drafts of several slots, one slot after the other."""

    slots: NDArray[np.int32]
    """[slots], distinct"""
    counts: NDArray[np.int32]
    """[slots]: drafts of each slot"""
    tokens: NDArray[np.int32]
    """[drafts]"""
    sources: NDArray[np.int32]
    """[slots]: a number that says where each slot's drafts come from"""
    matched: NDArray[np.int32]
    """[slots]: how many of the slot's last tokens stand before its drafts there"""

    def cut(self, counts: NDArray[np.int32]) -> "Drafts":
        """The first `counts` [slots] drafts of each slot."""
        if (counts >= self.counts).all():
            return self
        counts = np.minimum(counts, self.counts)
        tokens = _first_of_each(self.counts, self.tokens, counts)
        return self._replace(counts=counts, tokens=tokens)


class DraftRows(NamedTuple):
    """The rows of a step that sample, for slots of which some have drafts. A slot's rows follow each
    other."""

    offsets: NDArray[np.int32]
    """[rows]: number of drafts of the row's slot before the row"""
    tokens: NDArray[np.int32]
    """[rows]: the draft after the row; `NO_DRAFT` in a slot's last row"""

    @staticmethod
    def of(counts: NDArray[np.int32], tokens: NDArray[np.int32]) -> "DraftRows":
        """The rows of slots that have these drafts (see `Drafts`)."""
        return DraftRows(*_lay_out_rows(counts, tokens))

    @staticmethod
    def without_drafts(rows: int) -> "DraftRows":
        return DraftRows(np.zeros(rows, np.int32), np.full(rows, NO_DRAFT, np.int32))

    def find_kept(
        self, tokens: NDArray[np.int32], bad: NDArray[np.int32]
    ) -> tuple[NDArray[np.bool_], NDArray[np.int32]]:
        """Whether each row's token is kept, bool [rows], and how many of each slot are, int32 [slots].

        tokens, bad: [rows], the sampled tokens, and whether a row could not be sampled. Such a row is kept
        only if its slot has no drafts. Otherwise it is sampled again in a later step, because NaN in the
        values of a draft spoils the attention of the tokens before it too.
        """
        kept = find_kept(*self, tokens, bad)
        return kept, _count_kept(self.offsets, kept)


@compiled
def find_kept(offsets, drafts, tokens, bad):
    """See `DraftRows.find_kept`."""
    kept = np.empty(len(offsets), np.bool_)
    for row in range(len(offsets)):
        if offsets[row] == 0:
            kept[row] = bad[row] == 0 or drafts[row] == NO_DRAFT
        else:
            kept[row] = kept[row - 1] and tokens[row - 1] == drafts[row - 1] and bad[row] == 0
    return kept


@compiled
def _count_kept(offsets, kept):
    counts, slots = np.zeros(len(offsets), np.int32), 0
    for row in range(len(offsets)):
        slots += 1 if offsets[row] == 0 else 0
        counts[slots - 1] += np.int32(kept[row])
    return counts[:slots].copy()


@compiled
def _lay_out_rows(counts, tokens):
    rows = len(counts) + len(tokens)
    offsets, following = np.empty(rows, np.int32), np.empty(rows, np.int32)
    row, draft = 0, 0
    for count in counts:
        for offset in range(count):
            offsets[row], following[row] = offset, tokens[draft]
            row, draft = row + 1, draft + 1
        offsets[row], following[row] = count, NO_DRAFT
        row += 1
    return offsets, following


@compiled
def _first_of_each(counts, tokens, wanted):
    chosen = np.empty(wanted.sum(), np.int32)
    start, found = 0, 0
    for slot in range(len(counts)):
        chosen[found : found + wanted[slot]] = tokens[start : start + wanted[slot]]
        start, found = start + counts[slot], found + wanted[slot]
    return chosen
