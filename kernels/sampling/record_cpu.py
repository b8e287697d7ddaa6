"""Records on a CPU the tokens that are kept of rows with drafts."""

import numpy as np
import torch

from ...runtime.automaton_format import NO_AUTOMATON
from ..automaton.layout import STATE
from ..automaton.rows import SlotRegisters
from ..common.drafts import find_kept
from ..common.jit import compiled
from .batch import DraftedRows, Sampled

NO_COUNTS = np.zeros((0, 0), np.int32)


def record_kept(
    sampled: Sampled,
    slots: torch.Tensor,
    drafts: DraftedRows,
    last_tokens: torch.Tensor,
    counted: tuple[torch.Tensor, torch.Tensor] | None,
    registers: SlotRegisters,
) -> None:
    """Records the kept tokens of rows: the last one of each slot, the counts for penalties, and the registers
    after it, if the batch had automata.

    slots: int32 [rows]. counted: int32 [rows], each row's entry in the counts or -1, and the counts, int32
    [entries, vocab]; None: no row has penalties
    """
    entries, counts = (slots.numpy(), NO_COUNTS) if counted is None else (each.numpy() for each in counted)
    ahead = registers.ahead
    assert ahead is not None, "drafts were not announced"
    record_rows(
        slots.numpy(),
        drafts.offsets.numpy(),
        drafts.tokens.numpy(),
        sampled.tokens.numpy(),
        sampled.bad.numpy(),
        last_tokens.numpy(),
        entries,
        counts,
        ahead.numpy(),
        registers.values.numpy(),
        sampled.states is not None,
    )


@compiled
def record_rows(
    slots, offsets, drafts, tokens, bad, last_tokens, entries, counts, ahead, registers, with_automata
):
    """See `record_kept`. ahead: `SlotRegisters.ahead`; with_automata: whether it has the rows' registers"""
    kept = find_kept(offsets, drafts, tokens, bad)
    for row in range(len(slots)):
        if not kept[row]:
            continue
        slot = slots[row]
        last_tokens[slot] = tokens[row]  # the slot's last kept row wins
        if len(counts) > 0 and entries[row] >= 0:
            counts[entries[row], tokens[row]] += 1
        if with_automata and ahead[row, STATE] != NO_AUTOMATON:
            registers[slot] = ahead[row]
