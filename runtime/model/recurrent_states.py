"""The memory of recurrent layers' states: a place for each slot's live state and for each checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..messages import NO_STATE, Row
from .interface.cache_spec import CacheSpec
from .interface.input_batch import RowStates

CHECKPOINT_TOKENS = 2048
"""tokens of the KV cache for each of which there is a place for a checkpoint"""


def count_places(slots: int, tokens: int) -> int:
    """Places for `slots` requests, two each, and for the checkpoints of a KV cache of `tokens` tokens."""
    return 2 * slots + tokens // CHECKPOINT_TOKENS


class RecurrentStates:
    """Owns the contents of places. The scheduler decides what is where."""

    def __init__(
        self, spec: CacheSpec, places: int, slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """dtype: of activations"""
        self.tensors = [
            torch.empty((places, *state.shape), dtype=state.dtype or dtype, device=device)
            for state in spec.states
        ]
        self._places = np.full(slots, NO_STATE, np.int64)

    def set_up(self, slot: int, place: int) -> None:
        self._places[slot] = place

    def load(self, rows: Sequence[Row]) -> None:
        """Copies checkpoints to the slots that continue them. Call it before the forward pass."""
        self._copy([(row.load_state, self._places[row.slot]) for row in rows if row.load_state != NO_STATE])

    def save(self, rows: Sequence[Row]) -> None:
        """Copies live states to checkpoints. Call it after the forward pass."""
        self._copy([(self._places[row.slot], row.save_state) for row in rows if row.save_state != NO_STATE])

    def pack(self, place: int) -> torch.Tensor:
        """The bytes of a state: uint8 [state_bytes], a copy."""
        return torch.cat([tensor[place].reshape(-1).view(torch.uint8) for tensor in self.tensors])

    def unpack(self, place: int, packed: torch.Tensor) -> None:
        """Fills a place with a state's bytes, which may be in the host's memory."""
        start = 0
        for tensor in self.tensors:
            target = tensor[place].reshape(-1).view(torch.uint8)
            target.copy_(packed[start : start + len(target)], non_blocking=True)
            start += len(target)

    def of_rows(self, rows: Sequence[Row]) -> RowStates:
        return RowStates(self.tensors, self._places[[row.slot for row in rows]])

    def _copy(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copies from the first place of each pair to the second one."""
        for source, target in copies:
            torch._foreach_copy_(
                [tensor[target] for tensor in self.tensors], [tensor[source] for tensor in self.tensors]
            )
