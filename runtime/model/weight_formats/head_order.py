"""Puts rows and columns that a GGUF file has reordered into the order of Hugging Face's checkpoints."""

from __future__ import annotations

from typing import NamedTuple

import torch


class HeadOrder(NamedTuple):
    """A file's rows are [groups, n, inner, size], and Hugging Face's are [groups, inner, n, size]."""

    groups: int
    inner: int
    size: int = 1
    begin: int = 0
    """the number of rows before them, which keep their places"""

    def find_problem(self, rows: int) -> str | None:
        """Says what is wrong with the number of rows; None if they can have this order."""
        unit = self.groups * self.inner * self.size
        if rows > self.begin and (rows - self.begin) % unit == 0:
            return None
        return f"{rows} rows or columns; those after the first {self.begin} should be a multiple of {unit}"

    def restore(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with its rows as in Hugging Face's checkpoints."""
        changed = tensor[self.begin :]
        split = changed.reshape(self.groups, -1, self.inner, self.size, *changed.shape[1:])
        restored = split.transpose(1, 2).reshape(changed.shape)
        return torch.cat((tensor[: self.begin], restored)) if self.begin else restored
