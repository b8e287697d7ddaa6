# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""Prints random numbers of Triton's Philox and our noise."""

import torch
import triton
import triton.language as tl
from arbora.kernels.sampling.math_cuda import gumbel
from interpreted_triton import DEVICE


@triton.jit
def philox_kernel(counter, seed, out):
    lane = tl.arange(0, 1)
    c0, c1 = tl.load(counter + lane), tl.load(counter + 1 + lane)
    c2, c3 = tl.load(counter + 2 + lane), tl.load(counter + 3 + lane)
    w0, w1, w2, w3 = tl.philox(tl.load(seed), c0, c1, c2, c3)
    tl.store(out + lane, w0.to(tl.int64))
    tl.store(out + 1 + lane, w1.to(tl.int64))
    tl.store(out + 2 + lane, w2.to(tl.int64))
    tl.store(out + 3 + lane, w3.to(tl.int64))


@triton.jit
def gumbel_kernel(seed, position, out, SIZE: tl.constexpr):
    token = tl.arange(0, SIZE)
    tl.store(out + token, gumbel(tl.load(seed), tl.load(position), token))


def philox_with_triton(counter: list[int], seed: int) -> list[int]:
    out = torch.empty(4, dtype=torch.int64, device=DEVICE)
    signed = torch.tensor(counter, dtype=torch.int64).to(DEVICE, torch.int32)
    philox_kernel[(1,)](signed, _signed(seed), out)
    return [int(word) for word in out]


def gumbel_with_triton(seed: int, position: int, size: int) -> list[float]:
    out = torch.empty(size, device=DEVICE)
    at = torch.tensor([position], dtype=torch.int32, device=DEVICE)
    gumbel_kernel[(1,)](_signed(seed), at, out, SIZE=size, enable_fp_fusion=False)
    return [float(value) for value in out]


def _signed(seed: int) -> torch.Tensor:
    return torch.tensor([(seed + (1 << 63)) % (1 << 64) - (1 << 63)], dtype=torch.int64, device=DEVICE)
