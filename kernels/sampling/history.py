"""The tokens of prompts and how often each token was in an output, for penalties."""

import numpy as np
import torch
from numpy.typing import NDArray

from ..common.upload import upload

FIRST_PENALTY_ENTRIES = 4


class TokenHistory:
    """Prompt bits and output counts of the slots with penalties. The tensors grow with their number."""

    def __init__(self, vocab: int, device: torch.device) -> None:
        self._vocab = vocab
        words = -(-vocab // 32)
        self.prompt_seen = torch.zeros(0, words, dtype=torch.int32, device=device)
        self.output_counts = torch.zeros(0, vocab, dtype=torch.int32, device=device)
        self._entry_of_slot: dict[int, int] = {}
        self._free: list[int] = []

    def reserve(self, entries: int) -> None:
        """Grow now, so that the tensors do not move while at most `entries` slots have penalties."""
        if entries > len(self.output_counts):
            self._grow(entries)

    def remember(self, slot: int, prompt: NDArray[np.int32], output: NDArray[np.int32]) -> None:
        entry = self._entry_of_slot[slot] = self._take()
        words = self.prompt_seen.shape[1]
        seen = np.zeros(words * 32, np.uint8)
        seen[prompt] = 1
        bits = np.packbits(seen, bitorder="little").view(np.int32)
        counts = np.bincount(output, minlength=self._vocab).astype(np.int32)
        self.prompt_seen[entry], self.output_counts[entry] = upload([bits, counts], self.prompt_seen.device)

    def forget(self, slot: int) -> None:
        if slot in self._entry_of_slot:
            self._free.append(self._entry_of_slot.pop(slot))

    def count_sampled(self, slots: NDArray[np.int32], tokens: torch.Tensor) -> None:
        entries = self.entries(slots)
        if entries is None:
            return
        rows = np.flatnonzero(entries >= 0)
        row_index, start = upload([rows, entries[rows].astype(np.int64) * self._vocab], tokens.device)
        self.output_counts.view(-1)[start + tokens[row_index]] += 1

    def entries(self, slots: NDArray[np.int32]) -> NDArray[np.int32] | None:
        """Each slot's row in the tensors, int32 [rows], -1 for a slot without penalties; None if no slot has
        one."""
        if not self._entry_of_slot or self._entry_of_slot.keys().isdisjoint(slots.tolist()):
            return None
        return np.array([self._entry_of_slot.get(slot, -1) for slot in slots.tolist()], np.int32)

    def _take(self) -> int:
        if not self._free:
            self._grow(max(FIRST_PENALTY_ENTRIES, 2 * len(self.output_counts)))
        return self._free.pop()

    def _grow(self, entries: int) -> None:
        self._free += range(len(self.output_counts), entries)
        self.prompt_seen = _grow_rows(self.prompt_seen, entries)
        self.output_counts = _grow_rows(self.output_counts, entries)


def _grow_rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    grown = tensor.new_zeros(rows, tensor.shape[1])
    grown[: len(tensor)] = tensor
    return grown
