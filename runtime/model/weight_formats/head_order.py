"""Puts rows and columns that a GGUF file has reordered into the order of Hugging Face's checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
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


class JoinedRows(NamedTuple):
    """The rows of a tensor that has several matrices: for each head a run of rows of each of its parts."""

    heads: int
    runs: tuple[int, ...]
    """the number of a head's rows of each part"""
    matrices: Mapping[str, slice]
    """the parts of each matrix, by its name"""

    @property
    def num_rows(self) -> int:
        return self.heads * sum(self.runs)

    def find(self, matrix: str) -> torch.Tensor:
        """The numbers of a matrix's rows. int64 [rows]"""
        parts = torch.arange(self.num_rows).view(self.heads, -1).split(self.runs, dim=1)
        return torch.cat([part.flatten() for part in parts[self.matrices[matrix]]])
