"""Records sampled tokens on CUDA, and of rows with drafts those that are kept."""

import torch
import triton
import triton.language as tl

from ..automaton.cuda import keep_ahead
from ..automaton.rows import SlotRegisters
from .batch import DraftedRows, Sampled


@triton.jit
def record_kernel(
    tokens, slots, last_tokens, entries, output_counts, vocab, bad, offsets, drafts, ahead, registers
):
    """Records a row's token in one program. entries and output_counts are None if no row has penalties; bad …
    registers are None if no slot has drafts, ahead and registers also if no row has an automaton."""
    row = tl.program_id(0)
    token, slot = tl.load(tokens + row), tl.load(slots + row)
    if offsets is None:
        tl.store(last_tokens + slot, token)
        if entries is not None:
            entry = tl.load(entries + row).to(tl.int64)
            if entry >= 0:
                count = output_counts + entry * vocab + token
                tl.store(count, tl.load(count) + 1)
    else:
        offset, draft, is_bad = tl.load(offsets + row), tl.load(drafts + row), tl.load(bad + row)
        kept = (is_bad == 0) | ((offset == 0) & (draft < 0))
        for before in range(row - offset, row):
            agrees = tl.load(tokens + before) == tl.load(drafts + before)
            kept = kept & agrees & (tl.load(bad + before) == 0)
        if kept:
            if entries is not None:
                entry = tl.load(entries + row).to(tl.int64)
                if entry >= 0:
                    # Two rows of a slot may have sampled the same token.
                    tl.atomic_add(output_counts + entry * vocab + token, 1)
            next_bad = tl.load(bad + row + 1, mask=draft >= 0, other=1)
            if (token != draft) | (next_bad != 0):
                tl.store(last_tokens + slot, token)
                if ahead is not None:
                    keep_ahead(row, slot, ahead, registers)


def record(
    tokens: torch.Tensor,
    slots: torch.Tensor,
    last_tokens: torch.Tensor,
    counted: tuple[torch.Tensor, torch.Tensor] | None,
) -> None:
    """Records tokens, int32 [rows], as their slots' last ones. Of rows with the same slot, any one wins.

    counted: see `record_kept`
    """
    _launch(tokens, slots, last_tokens, counted, (None,) * 5)


def record_kept(
    sampled: Sampled,
    slots: torch.Tensor,
    drafts: DraftedRows,
    last_tokens: torch.Tensor,
    counted: tuple[torch.Tensor, torch.Tensor] | None,
    registers: SlotRegisters,
) -> None:
    """As `record_cpu.record_kept`."""
    kept = (None, None) if sampled.states is None else (registers.ahead, registers.values)
    parts = sampled.bad, drafts.offsets, drafts.tokens, *kept
    _launch(sampled.tokens, slots, last_tokens, counted, parts)


def _launch(
    tokens: torch.Tensor,
    slots: torch.Tensor,
    last_tokens: torch.Tensor,
    counted: tuple[torch.Tensor, torch.Tensor] | None,
    drafted: tuple[torch.Tensor | None, ...],
) -> None:
    entries, counts = counted or (None, None)
    vocab = 0 if counts is None else counts.shape[1]
    parts = tokens, slots, last_tokens, entries, counts, vocab
    record_kernel[(len(tokens),)](*parts, *drafted, num_warps=1)
