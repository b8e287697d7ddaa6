# mypy: disable-error-code="untyped-decorator,no-untyped-def"
"""Random words and noise, as the kernels on CUDA draw them."""

import torch
import triton
import triton.language as tl
from arbora.kernels.sampling.math_cuda import gumbel, may_reach, random_word
from interpreted_triton import DEVICE


@triton.jit
def noise_kernel(seed, position, words, noise, SIZE: tl.constexpr):
    token = tl.arange(0, SIZE)
    word = random_word(tl.load(seed), tl.load(position), token)
    tl.store(words + token, word.to(tl.int64))
    tl.store(noise + token, gumbel(word))


@triton.jit
def reach_kernel(words, more, reached, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    word = tl.load(words + lane).to(tl.uint32)
    tl.store(reached + lane, may_reach(word, gumbel(word) + tl.load(more)).to(tl.int32))


def words_with_triton(seed: int, position: int, size: int) -> list[int]:
    return [int(word) for word in _drawn(seed, position, size)[0]]


def gumbel_with_triton(seed: int, position: int, size: int) -> list[float]:
    return [float(value) for value in _drawn(seed, position, size)[1]]


def reached_with_triton(words: torch.Tensor, more: float) -> list[bool]:
    """Whether each of the words, int64, may have its own noise and `more`."""
    reached = torch.empty(len(words), dtype=torch.int32, device=DEVICE)
    given = torch.tensor([more], device=DEVICE)
    reach_kernel[(1,)](words.to(DEVICE), given, reached, SIZE=len(words), enable_fp_fusion=False)
    return [bool(each) for each in reached]


def _drawn(seed: int, position: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    words, noise = torch.empty(size, dtype=torch.int64, device=DEVICE), torch.empty(size, device=DEVICE)
    at = torch.tensor([position], dtype=torch.int32, device=DEVICE)
    noise_kernel[(1,)](_signed(seed), at, words, noise, SIZE=size, enable_fp_fusion=False)
    return words, noise


def _signed(seed: int) -> torch.Tensor:
    return torch.tensor([(seed + (1 << 63)) % (1 << 64) - (1 << 63)], dtype=torch.int64, device=DEVICE)
