"""Prints how far attention on two threads is off: the largest of many turns, NaN if one has it."""

import numpy as np
import torch
from arbora.kernels import reference
from arbora.kernels.attention import AttentionBatch, paged_attention

TOKENS, LENGTH, PAGE_SIZE, TURNS = 200, 900, 16, 50


def largest_error() -> float:
    pages = -(-LENGTH // PAGE_SIZE)
    table = np.arange(pages, dtype=np.int32)
    batch = AttentionBatch.build([TOKENS], [LENGTH], [table], PAGE_SIZE, torch.device("cpu"))
    q = torch.randn(TOKENS, 16, 64).bfloat16()
    kv = torch.randn(2, 2, pages, PAGE_SIZE, 64).bfloat16()
    expected = reference.paged_attention(q, kv, batch, 0.125)
    turns = [paged_attention(q, kv, batch, 0.125) for _ in range(TURNS)]
    return float(torch.stack([(turn - expected).abs().max() for turn in turns]).max())


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(2)
    print(largest_error())
