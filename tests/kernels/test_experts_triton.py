"""Experts on CUDA, in Triton's interpreter without a GPU, against the reference."""

from __future__ import annotations

import pytest
import torch
from arbora.kernels import reference
from arbora.kernels.elementwise import silu_and_mul
from interpreted_triton import DEVICE

from arbora.kernels.experts import cuda  # isort: skip

EXPERTS = 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("tokens", "k", "hidden", "inner"), [(1, 3, 64, 32), (40, 2, 70, 33), (100, 1, 64, 64)]
)
def test_experts_agree_with_the_reference(
    tokens: int, k: int, hidden: int, inner: int, biased: bool, dtype: torch.dtype
) -> None:
    """The experts of some tokens are none; most tokens have one expert."""
    random = torch.Generator().manual_seed(tokens)
    first = (torch.randn(EXPERTS, 2 * inner, hidden, generator=random) / hidden**0.5).to(dtype)
    second = (torch.randn(EXPERTS, hidden, inner, generator=random) / inner**0.5).to(dtype)
    bias = torch.randn(EXPERTS, 2 * inner, generator=random).to(dtype) if biased else None
    x = torch.randn(tokens, hidden, generator=random).to(dtype)
    experts = torch.stack([torch.randperm(EXPERTS + 1, generator=random)[:k] for _ in range(tokens)])
    experts[tokens // 4 :, 0] = 2 if k == 1 else experts[tokens // 4 :, 0]
    shares = torch.rand(tokens, k, generator=random)
    order = cuda.sort(experts.to(DEVICE), EXPERTS)
    moved = None if bias is None else bias.to(DEVICE)
    inner_rows = silu_and_mul(cuda.multiply(x.to(DEVICE), first.to(DEVICE), moved, order, gathers=True))
    results = cuda.multiply(inner_rows, second.to(DEVICE), None, order, gathers=False)
    got = cuda.combine(results, order, shares.to(DEVICE)).cpu()
    products = [
        [
            lambda rows, weight=weight, offset=offset: torch.nn.functional.linear(rows, weight, offset)
            for weight, offset in zip(weights, offsets, strict=True)
        ]
        for weights, offsets in (
            (first, [None] * EXPERTS if bias is None else bias),
            (second, [None] * EXPERTS),
        )
    ]
    expected = reference.run_experts(x, products[0], products[1], reference.silu_and_mul, experts, shares)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


def test_the_clamped_gate_agrees_with_the_reference() -> None:
    gate_up = 8 * torch.randn(5, 2 * 37, generator=torch.Generator().manual_seed(0))
    got = cuda.clamp_and_gate(gate_up.to(DEVICE), 1.702, 7.0).cpu()
    torch.testing.assert_close(got, reference.clamp_and_gate(gate_up, 1.702, 7.0), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("renormalizes", [False, True])
def test_the_largest_logits_are_chosen(renormalizes: bool) -> None:
    logits = torch.randn(7, 9, generator=torch.Generator().manual_seed(0))
    numbers, shares = cuda.choose(logits.to(DEVICE), 3, renormalizes)
    expected = reference.choose_experts(logits, 3, renormalizes)
    assert torch.equal(numbers.cpu(), expected[0])
    torch.testing.assert_close(shares.cpu(), expected[1])
