"""Runs steps of a `Model` on pages in any order, without a scheduler."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from arbora.kernels.attention import AttentionBatch
from arbora.runtime.model.interface.input_batch import GroupInputs, InputBatch, RowStates
from arbora.runtime.model.interface.model import Model
from arbora.runtime.model.kv_pool import allocate_pool
from tiny_models import VOCABULARY
from transformers import PreTrainedModel

PAGES = 64
ROWS = 8
CPU = torch.device("cpu")
GENERATOR = torch.Generator().manual_seed(1)
PROMPT, OTHER = (torch.randint(2, VOCABULARY, (size,), generator=GENERATOR).tolist() for size in (37, 29))


class PagedRows:
    """Rows by number, each with a page table that grows."""

    def __init__(self, model: Model, page_size: int = 4) -> None:
        self._model, self._page_size = model, page_size
        spec = model.config.cache_spec
        self._kvs = allocate_pool(spec, [PAGES] * spec.layers, page_size, model.dtype, CPU)
        for kv in self._kvs:
            kv.fill_(torch.nan)  # shows reads of keys that no token has written
        self._free = random.Random(0).sample(range(PAGES), PAGES)
        self._pages: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}
        self._states = [
            torch.full((ROWS, *state.shape), torch.nan, dtype=state.dtype or model.dtype)
            for state in model.config.cache_spec.states
        ]
        self._checkpoints: dict[tuple[int, int], list[torch.Tensor]] = {}  # by row and length
        model.set_context(PAGES * page_size)
        model.cover(PAGES * page_size)

    def fork(self, row: int, source: int, tokens: int) -> None:
        """Begins a row with the first tokens of another one, on the same pages: as a match in the tree does.
        `tokens` is a multiple of the page size, and a step of the other row ended there."""
        self._pages[row] = self._pages[source][: tokens // self._page_size]
        self._lengths[row] = tokens
        for tensor, state in zip(self._states, self._checkpoints[source, tokens], strict=True):
            tensor[row] = state

    @torch.inference_mode()
    def run(self, *rows: tuple[int, Sequence[int]]) -> list[torch.Tensor]:
        """Runs one step, in which each row gets its next tokens. Returns the logits of each row's tokens."""
        counts = [len(tokens) for _, tokens in rows]
        hidden = self._model.forward(self._batch(rows), self._kvs)
        logits = self._model.logits(hidden)
        for row, tokens in rows:
            self._lengths[row] += len(tokens)
            self._checkpoints[row, self._lengths[row]] = [tensor[row].clone() for tensor in self._states]
        return list(torch.split(logits, counts))

    def _batch(self, rows: Sequence[tuple[int, Sequence[int]]]) -> InputBatch:
        ends = {row: self._lengths.setdefault(row, 0) + len(tokens) for row, tokens in rows}
        for row, end in ends.items():
            table = self._pages.setdefault(row, [])
            while len(table) * self._page_size < end:
                table.append(self._free.pop())
        positions = [range(self._lengths[row], end) for row, end in ends.items()]
        size = self._page_size
        places = [
            self._pages[row][at // size] * size + at % size
            for row, of_row in zip(ends, positions, strict=True)
            for at in of_row
        ]
        attention = AttentionBatch.build(
            [len(tokens) for _, tokens in rows],
            list(ends.values()),
            [np.array(self._pages[row], np.int32) for row in ends],
            size,
            CPU,
        )
        return InputBatch(
            tokens=torch.tensor([token for _, tokens in rows for token in tokens], dtype=torch.int32),
            positions=torch.tensor([at for of_row in positions for at in of_row]),
            groups=(GroupInputs(torch.tensor(places), attention),),
            outputs=None,
            states=RowStates(self._states, np.array(list(ends), np.int64)) if self._states else None,
        )


def differences(reference: PreTrainedModel, rows: PagedRows) -> list[float]:
    """The largest difference of logits: of a whole prompt; of chunks; of a row in decode beside chunks of
    another one; of a row that continues another one's pages."""
    with torch.no_grad():
        expected, other = (
            reference(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
            for tokens in (PROMPT, OTHER)
        )

    def difference(found: list[torch.Tensor], wanted: torch.Tensor) -> float:
        return float((torch.cat(found) - wanted).abs().max() / wanted.abs().max())

    whole = rows.run((0, PROMPT))
    chunks = [rows.run((1, PROMPT[start:end]))[0] for start, end in ((0, 13), (13, 22), (22, 37))]
    decoded, prefilled = rows.run((2, PROMPT[:20])), []
    for at, (start, end) in enumerate(((0, 9), (9, 14), (14, 18), (18, 19), (19, 29)), start=20):
        found = rows.run(*((2, [PROMPT[at]]), (3, OTHER[start:end]))[:: 1 if at % 2 else -1])
        decoded.append(found[0 if at % 2 else 1])
        prefilled.append(found[1 if at % 2 else 0])
    rows.fork(4, 2, 20)
    continued = rows.run((4, PROMPT[20:]))
    return [
        difference(whole, expected),
        difference(chunks, expected),
        difference(decoded, expected[:25]),
        difference(prefilled, other),
        difference(continued, expected[20:]),
    ]
