"""Which tokens of rows with drafts are kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from arbora.kernels.common.drafts import NO_DRAFT, DraftRows, Drafts
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray


def ints(values: Sequence[int]) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def test_a_slot_has_a_row_after_its_last_token_and_after_each_draft() -> None:
    rows = DraftRows.of(ints([2, 0, 1]), ints([7, 8, 9]))
    assert rows.offsets.tolist() == [0, 1, 2, 0, 0, 1]
    assert rows.tokens.tolist() == [7, 8, NO_DRAFT, NO_DRAFT, 9, NO_DRAFT]
    none = DraftRows.without_drafts(2)
    assert (none.offsets.tolist(), none.tokens.tolist()) == ([0, 0], [NO_DRAFT, NO_DRAFT])


def test_drafts_are_cut_from_their_end() -> None:
    drafts = Drafts(ints([5, 3, 4]), ints([2, 0, 3]), ints([1, 2, 3, 4, 5]), ints([0, 0, 1]), ints([4, 0, 9]))
    cut = drafts.cut(ints([1, 4, 2]))
    assert [each.tolist() for each in cut] == [[5, 3, 4], [1, 0, 2], [1, 3, 4], [0, 0, 1], [4, 0, 9]]
    assert drafts.cut(ints([2, 0, 3])) is drafts


def test_a_token_that_could_not_be_sampled_is_kept_only_without_drafts() -> None:
    rows = DraftRows.of(ints([2, 1, 0]), ints([7, 8, 0]))
    kept, counts = rows.find_kept(ints([7, 0, 0, 0, 5, 0]), ints([0, 1, 0, 2, 0, 2]))
    assert kept.tolist() == [True, False, False, False, False, True]
    assert counts.tolist() == [1, 0, 1]


@given(st.lists(st.tuples(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1))), st.integers(0, 1))))
def test_tokens_are_kept_up_to_the_first_that_differs_from_its_draft(
    slots: list[tuple[list[tuple[int, int]], int]],
) -> None:
    counts, drafts, tokens, expected = [], [], [], []
    for pairs, last in slots:
        counts.append(len(pairs))
        drafts += [draft for draft, _ in pairs]
        tokens += [*(token for _, token in pairs), last]
        agrees = [True, *(draft == token for draft, token in pairs)]
        expected += [all(agrees[: at + 1]) for at in range(len(agrees))]
    rows = DraftRows.of(ints(counts), ints(drafts))
    kept, of_slots = rows.find_kept(ints(tokens), ints([0] * len(tokens)))
    assert kept.tolist() == expected
    ends = np.cumsum([1 + count for count in counts]).tolist()
    starts = [0, *ends][: len(counts)]
    assert of_slots.tolist() == [sum(expected[start:end]) for start, end in zip(starts, ends, strict=True)]
