"""The inputs of one forward pass, built from the rows of a plan with one array operation each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...kernels.adapters import NO_ADAPTER, group_rows
from ...kernels.attention import AttentionBatch
from ...kernels.attention.batch import DeviceTables
from ...kernels.common.drafts import DraftRows, Drafts
from ...kernels.common.step_tokens import NO_SLOT
from ...kernels.common.upload import upload
from ..messages import TOKEN_BYTES, Row, RowGroup
from .interface.cache_spec import PageGroup, number_groups
from .interface.input_batch import GroupInputs, InputBatch, RowStates
from .page_tables import PageTables
from .recurrent_states import RecurrentStates
from .slot_states import NONE, SlotStates

ONE_TOKEN = bytes(TOKEN_BYTES)
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class StepInputs:
    """The inputs of a step on the host. `InputBatch` explains fields of the same name."""

    tokens: NDArray[np.int32]
    """[tokens]: token ids; 0 for a token that a slot sampled last"""
    slots: NDArray[np.int32]
    """[tokens]: the slot whose last token takes the place of the one in `tokens`; `NO_SLOT`: none"""
    positions: NDArray[np.int64]
    places: list[NDArray[np.int64]]
    """of each page group"""
    outputs: NDArray[np.int64]
    new_pages: tuple[NDArray[np.int64], NDArray[np.int32]]
    """the page tables' changes: indices into `PageTables.on_device`, and pages"""
    attention: list[AttentionBatch]
    """of each page group"""
    layer_groups: Sequence[int]
    """the group of each layer, if there are several groups"""
    rows: Sequence[Row]
    """the plan's rows"""
    groups: Sequence[RowGroup]
    """the plan's groups of rows"""
    sampled_slots: NDArray[np.int32]
    """the slots of the positions at which a token is sampled: each once, or 1 + k times with k drafts"""
    drafts: DraftRows | None
    """the drafts at these positions; None: no slot has drafts"""
    logprobs: NDArray[np.int32]
    """number of alternatives to report for each of `sampled_slots`; `NONE`: no log-probabilities"""
    masked_slots: list[int]
    """those of `sampled_slots` that wait for masks of the host"""
    target_rows: list[Row]
    """the rows that have targets"""
    tables: PageTables
    last_tokens: torch.Tensor
    """int32 [slots], on the device: the token that each slot sampled last"""
    adapters: NDArray[np.int32] | None
    """[tokens]: the place of each token's adapter, or `NO_ADAPTER`; None if no row has one"""
    states: RowStates | None = None

    @property
    def size(self) -> int:
        return len(self.tokens)

    @property
    def all_in_order(self) -> bool:
        """Whether all tokens are output tokens, in their order."""
        return self.attention[0].outputs is None

    @cached_property
    def alternatives(self) -> int | None:
        """The most alternatives that a row reports; None if no row wants log-probabilities."""
        most = int(self.logprobs.max())
        return None if most == NONE else most

    @cached_property
    def on_device(self) -> InputBatch:
        """The inputs on the device. The first access moves them there, and the new pages into the tables."""
        fed = np.flatnonzero(self.slots != NO_SLOT)
        arrays: list[NDArray[Any]] = [self.tokens, self.positions, self.outputs]
        arrays += [fed, self.slots[fed].astype(np.int64), *self.new_pages, *self.places]
        arrays += self.group_adapters(self.size, len(self.outputs))
        tokens, positions, outputs, fed_tokens, fed_slots, indices, pages, *others = upload(
            arrays, self.last_tokens.device
        )
        if len(fed):
            tokens[fed_tokens] = self.last_tokens[fed_slots]
        self.tables.write(indices, pages)
        groups = tuple(map(GroupInputs, others, self.attention))
        adapters = others[len(groups) :]
        chosen = None if self.all_in_order else outputs
        texts = self._text_numbers()
        return InputBatch(tokens, positions, groups, chosen, self.layer_groups, self.states, texts, *adapters)

    def _text_numbers(self) -> torch.Tensor | None:
        """See `InputBatch.texts`."""
        if not any(row.second for row in self.rows):
            return None
        seconds = np.array([row.second or NEVER for row in self.rows], np.int64)
        texts = self.positions >= np.repeat(seconds, self.attention[0].query_lengths)
        return upload([texts.astype(np.int64)], self.last_tokens.device)[0]

    def group_adapters(self, tokens: int, outputs: int) -> list[NDArray[np.int32]]:
        """`InputBatch.adapters` and `output_adapters` of a batch that is padded to these numbers; [] for
        None."""
        if self.adapters is None:
            return []
        return [group_rows(self.adapters, tokens), group_rows(self.adapters[self.outputs], outputs)]

    def move_pages(self) -> None:
        """Moves only the new pages into the tables on the device."""
        self.tables.write(*upload(self.new_pages, self.last_tokens.device))


def build_step_inputs(
    rows: Sequence[Row],
    groups: Sequence[RowGroup],
    tables: PageTables,
    states: SlotStates,
    recurrent: RecurrentStates | None = None,
    needs_all: bool = False,
    drafts: Drafts | None = None,
) -> StepInputs:
    """Builds a step's inputs once `tables` has the rows' new pages and `states` their slots' parameters. Call
    it once for each step, because it extends the slots' lengths. needs_all: all tokens are output tokens.
    drafts: of each row; None: no row has any"""
    last_tokens = states.sampling.last_tokens
    slots = np.array([row.slot for row in rows], np.int64)
    starts = np.array([row.start for row in rows], np.int64)
    given = np.array([len(row.tokens) // TOKEN_BYTES for row in rows], np.int64)
    guessed = np.zeros(len(rows), np.int32) if drafts is None else drafts.counts
    tokens = tables.extend(slots, starts, given, guessed)
    lengths = tables.lengths[slots] + guessed
    sampled = [at for at, row in enumerate(rows) if row.samples or row.pools]
    targeted = [at for at, row in enumerate(rows) if row.targets]
    chosen = slice(None) if len(sampled) == len(rows) else sampled
    outputs: NDArray[np.int64] = tokens.ends[chosen] - 1
    sampled_slots = slots[chosen].astype(np.int32)
    of_rows = None
    if drafts is not None:
        of_rows = DraftRows.of(guessed[chosen], drafts.tokens)
        positions = 1 + guessed[chosen]
        outputs = (np.repeat(outputs - guessed[chosen], positions) + of_rows.offsets).astype(np.int64)
        sampled_slots = np.repeat(sampled_slots, positions)
    is_all_sampled = len(outputs) == len(tokens.slots)
    if targeted:
        ends = tokens.ends.tolist()
        outputs = np.concatenate([outputs, *(_find_targets(rows[row], ends[row]) for row in targeted)])
    adapters = states.adapters[slots]
    all_in_order = needs_all or (is_all_sampled and not targeted)
    return StepInputs(
        tokens=_join_tokens(rows, drafts),
        slots=tokens.slots,
        positions=tokens.positions,
        places=tables.places(slots, tokens),
        outputs=outputs,
        new_pages=tables.take_new(),
        attention=[
            AttentionBatch.build(
                tokens.lengths,
                lengths,
                [] if last_tokens.is_cuda else [tables.table(row.slot, number) for row in rows],
                tables.page_size,
                last_tokens.device,
                find_visible(groups, page_group, lengths),
                DeviceTables(tables.on_device, tables.starts(slots, number)),
                None if all_in_order else outputs,
            )
            for number, page_group in enumerate(tables.groups)
        ],
        layer_groups=number_groups(tables.groups),
        rows=rows,
        groups=groups,
        sampled_slots=sampled_slots,
        drafts=of_rows,
        logprobs=states.logprobs[sampled_slots],
        masked_slots=[row.slot for row in rows if row.host_mask and row.samples],
        target_rows=[rows[row] for row in targeted],
        tables=tables,
        last_tokens=last_tokens,
        adapters=None if (adapters == NO_ADAPTER).all() else np.repeat(adapters, tokens.lengths),
        states=None if recurrent is None else recurrent.of_rows(rows),
    )


def _join_tokens(rows: Sequence[Row], drafts: Drafts | None) -> NDArray[np.int32]:
    """The tokens of a step: of each row the given ones, or in decode a 0, and its drafts."""
    if drafts is None:
        return np.frombuffer(b"".join([row.tokens or ONE_TOKEN for row in rows]), np.int32).copy()
    parts, ends = [], np.cumsum(drafts.counts).tolist()
    for row, count, end in zip(rows, drafts.counts.tolist(), ends, strict=True):
        parts += [row.tokens or ONE_TOKEN, drafts.tokens[end - count : end].tobytes()]
    return np.frombuffer(b"".join(parts), np.int32).copy()


def _find_targets(row: Row, end: int) -> NDArray[np.int64]:
    """The step's tokens that have a target. `end`: where the row's tokens end in the step."""
    start = end - len(row.tokens) // TOKEN_BYTES + row.untargeted
    return np.arange(start, start + len(row.targets) // TOKEN_BYTES)


def find_visible(
    groups: Sequence[RowGroup], page_group: PageGroup, lengths: NDArray[np.int64]
) -> list[tuple[int, int, int]]:
    """The groups of rows, of which the layers see all shared keys. Behind a window, the rows of a group may
    have different pages."""
    found = []
    for group in groups:
        rows = slice(group.first_row, group.first_row + group.rows)
        if page_group.reach is None or int(lengths[rows].max()) <= page_group.reach:
            found.append((group.first_row, group.rows, group.shared_tokens))
    return found
