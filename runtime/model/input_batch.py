"""The tensors of one forward pass, built from the rows of a plan with one array operation each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...kernels.attention import AttentionBatch
from ...kernels.attention.batch import DeviceTables
from ...kernels.common.upload import upload
from ..messages import Row, RowGroup
from .page_tables import PageTables

ONE_TOKEN = bytes(4)


@dataclass(frozen=True)
class InputBatch:
    tokens: torch.Tensor
    """int32 [tokens]"""
    positions: torch.Tensor
    """int64 [tokens]"""
    places: torch.Tensor
    """int64 [tokens]: where their keys and values are written, page × page_size + offset"""
    attention: AttentionBatch
    outputs: torch.Tensor | None
    """int64 [output tokens]: the tokens whose hidden states are returned; None: all, in order.
    First the last tokens of the rows that sample, then the tokens of each row that have targets."""
    sampled_rows: NDArray[np.int64]
    """rows of the plan that sample"""
    target_rows: NDArray[np.int64]
    """rows of the plan with targets"""

    @property
    def size(self) -> int:
        return len(self.tokens)


def build_input_batch(
    rows: Sequence[Row], groups: Sequence[RowGroup], tables: PageTables, last_tokens: torch.Tensor
) -> InputBatch:
    """`tables` already has the rows' new pages. last_tokens: int32 [slots], on the device."""
    slots = np.array([row.slot for row in rows], np.int64)
    starts = np.array([row.start for row in rows], np.int64)
    lengths = np.array([len(row.tokens) // 4 or 1 for row in rows], np.int64)
    ends = np.cumsum(lengths)
    row_of_token = np.repeat(np.arange(len(rows)), lengths)
    positions = np.arange(ends[-1]) - (ends - lengths - starts)[row_of_token]
    sampled = np.flatnonzero([row.sample for row in rows])
    targeted = np.flatnonzero([bool(row.targets) for row in rows])
    fed = np.flatnonzero([not row.tokens for row in rows])
    tokens, moved_positions, places, outputs, fed_tokens, fed_slots, *new_pages = upload(
        [
            np.frombuffer(b"".join([row.tokens or ONE_TOKEN for row in rows]), np.int32).copy(),
            positions,
            tables.places(slots[row_of_token], positions),
            np.concatenate(
                [ends[sampled] - 1, *(_targeted(rows[row], int(ends[row])) for row in targeted.tolist())]
            ),
            ends[fed] - 1,
            slots[fed],
            *tables.take_new(),
        ],
        last_tokens.device,
    )
    if len(fed):  # rows without tokens get the token that their slot sampled last
        tokens[fed_tokens] = last_tokens[fed_slots]
    tables.write(*new_pages)
    return InputBatch(
        tokens=tokens,
        positions=moved_positions,
        places=places,
        attention=AttentionBatch.build(
            lengths.tolist(),
            (starts + lengths).tolist(),
            [tables.table(row.slot) for row in rows],
            tables.page_size,
            last_tokens.device,
            [(group.first_row, group.rows, group.shared_tokens) for group in groups],
            DeviceTables(tables.on_device, tables.starts(slots)),
        ),
        outputs=None if len(sampled) == ends[-1] and not len(targeted) else outputs,
        sampled_rows=sampled,
        target_rows=targeted,
    )


def _targeted(row: Row, end: int) -> NDArray[np.int64]:
    """The step's tokens that have a target. `end`: where the row's tokens end in the step."""
    start = end - len(row.tokens) // 4 + row.untargeted
    return np.arange(start, start + len(row.targets) // 4)
