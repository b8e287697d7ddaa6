"""Records sampled tokens on CUDA: the last token of each slot, and the counts for penalties."""

import torch
import triton
import triton.language as tl

from .batch import Penalties


@triton.jit
def record_kernel(tokens, slots, last_tokens, entries, output_counts, vocab):
    """One program for each row. entries and output_counts are None where no row has penalties."""
    row = tl.program_id(0)
    token = tl.load(tokens + row)
    tl.store(last_tokens + tl.load(slots + row), token)
    if entries is not None:
        entry = tl.load(entries + row).to(tl.int64)
        if entry >= 0:
            count = output_counts + entry * vocab + token
            tl.store(count, tl.load(count) + 1)


def record(
    tokens: torch.Tensor, slots: torch.Tensor, last_tokens: torch.Tensor, penalties: Penalties | None
) -> None:
    """tokens and slots: int32 [rows]. If several rows have the same slot, only one is sure to be recorded."""
    if penalties is None:
        record_kernel[(len(tokens),)](tokens, slots, last_tokens, None, None, 0, num_warps=1)
        return
    counts = penalties.output_counts
    record_kernel[(len(tokens),)](
        tokens, slots, last_tokens, penalties.entry, counts, counts.shape[1], num_warps=1
    )
