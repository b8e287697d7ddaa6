"""Runs a kernel on two threads many times and prints the largest error of a result, or NaN if one is NaN."""

import sys
from collections.abc import Callable

import numpy as np
import torch
from arbora.kernels import reference
from arbora.kernels.attention import AttentionBatch, paged_attention
from arbora.kernels.rotary import rotary_write_kv

TOKENS, PAGE_SIZE, TURNS = 200, 16, 50


def attention_error() -> float:
    length = 900
    pages = -(-length // PAGE_SIZE)
    table = np.arange(pages, dtype=np.int32)
    batch = AttentionBatch.build([TOKENS], [length], [table], PAGE_SIZE, torch.device("cpu"))
    q = torch.randn(TOKENS, 16, 64).bfloat16()
    kv = torch.randn(2, 2, pages, PAGE_SIZE, 64).bfloat16()
    expected = reference.paged_attention(q, kv, batch, 0.125)
    return largest_error(expected, lambda: paged_attention(q, kv, batch, 0.125))


def rotary_error() -> float:
    head_dim = 256
    cos_sin = torch.randn(TOKENS, head_dim)
    places = torch.arange(TOKENS)
    qkv = torch.randn(TOKENS, 8, head_dim)

    def result_of(rotate: Callable[..., None]) -> torch.Tensor:
        heads = qkv.clone()
        kv = torch.zeros(2, 2, -(-TOKENS // PAGE_SIZE), PAGE_SIZE, head_dim)
        q, k, v = torch.split(heads, [4, 2, 2], dim=1)
        rotate(q, k, v, cos_sin, places, places, kv)
        return torch.cat([heads[:, :4].flatten(), kv.flatten()])

    return largest_error(result_of(reference.rotary_write_kv), lambda: result_of(rotary_write_kv))


def largest_error(expected: torch.Tensor, compute: Callable[[], torch.Tensor]) -> float:
    return float(torch.stack([(compute() - expected).abs().max() for _ in range(TURNS)]).max())


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(2)
    print({"attention": attention_error, "rotary": rotary_error}[sys.argv[1]]())
