"""Makes a vector of each input from the hidden states of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ..messages import Row, RowError, RowVector
from .devices import HostCopies
from .input_batch import StepInputs
from .pooling_config import Method


class Pooler(Protocol):
    needs_all: bool
    """whether it needs the hidden states of all tokens; otherwise of the last token of each row that pools"""

    def pool(self, inputs: StepInputs, hidden: torch.Tensor) -> torch.Tensor:
        """The vectors, float32 [rows that pool, size], in the order of the rows.

        hidden: hidden states of a step's tokens [tokens, hidden], or of those of `needs_all`
        """
        ...


class TokenPooler:
    """Pools the hidden states of tokens, over the steps of an input. `head` maps [n, hidden] to [n, size]."""

    def __init__(
        self, method: Method, slots: int, head: Callable[[torch.Tensor], torch.Tensor] = lambda pooled: pooled
    ) -> None:
        self.needs_all = method != "lasttoken"
        self._method, self._slots, self._head = method, slots, head
        self._states: torch.Tensor | None = None
        """float32 [slots, hidden]: the sum, the maximum or the first of an input's hidden states so far"""

    def pool(self, inputs: StepInputs, hidden: torch.Tensor) -> torch.Tensor:
        pooling = [at for at, row in enumerate(inputs.rows) if row.pools]
        if not self.needs_all:
            return self._head(hidden.float())
        if self._states is None:
            self._states = torch.zeros(self._slots, hidden.shape[1], device=hidden.device)
        lengths = inputs.attention[0].query_lengths.astype(np.int64)
        starts = np.array([row.start for row in inputs.rows], np.int64)
        rows = self._combine(hidden, lengths)
        slots = torch.tensor([row.slot for row in inputs.rows], device=hidden.device)
        begun = torch.from_numpy(starts > 0).to(hidden.device)[:, None]
        rows = torch.where(begun, self._add(self._states[slots], rows), rows)
        self._states[slots] = rows
        if self._method == "mean":
            rows = rows / torch.from_numpy(starts + lengths).to(hidden.device)[:, None]
        return self._head(rows[pooling])

    def _combine(self, hidden: torch.Tensor, lengths: NDArray[np.int64]) -> torch.Tensor:
        """The sum, the maximum or the first of each row's hidden states, float32 [rows, hidden]."""
        if self._method == "cls":
            firsts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
            return hidden[torch.from_numpy(firsts).to(hidden.device)].float()
        reduce = "max" if self._method == "max" else "sum"
        counts = torch.from_numpy(lengths).to(hidden.device)
        reduced: torch.Tensor = torch.segment_reduce(hidden.float(), reduce, lengths=counts, axis=0)
        return reduced

    def _add(self, before: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if self._method == "cls":
            return before
        return torch.maximum(before, rows) if self._method == "max" else before + rows


class HeadPooler:
    """Classifies whole inputs by the model's own head."""

    needs_all = True

    def __init__(self, classify: Callable[[torch.Tensor, Sequence[int]], torch.Tensor]) -> None:
        self._classify = classify

    def pool(self, inputs: StepInputs, hidden: torch.Tensor) -> torch.Tensor:
        return self._classify(hidden, inputs.attention[0].query_lengths.tolist())


class RowVectors:
    """The vectors of a step's rows, on their way to the host."""

    def __init__(self, rows: list[Row], vectors: torch.Tensor) -> None:
        self._slots = [row.slot for row in rows if row.pools]
        self.copies = HostCopies([vectors.float()])

    def report(self, error: str) -> tuple[list[RowVector], list[RowError]]:
        """The messages. A vector with a number that is NaN or infinite becomes an error."""
        values = self.copies.wait()[0].numpy()
        good = np.isfinite(values).all(axis=1)
        pairs = list(zip(self._slots, values, good.tolist(), strict=True))
        vectors = [RowVector(slot, row.tobytes()) for slot, row, is_good in pairs if is_good]
        return vectors, [RowError(slot, "not_a_number", error) for slot, _, is_good in pairs if not is_good]
