"""Prints how far bfloat16 products are from float64, for the processor that numba compiles for."""

import json

import torch
from arbora.kernels.linear.bfloat16_cpu import Bfloat16CpuProduct
from arbora.kernels.linear.bfloat16_tile import MULTIPLIES_PAIRS


def main() -> None:
    """pairs: whether activations are multiplied in pairs; error: the largest, as a multiple of what roundings
    explain; is_invariant: whether rows have the same bits beside any others."""
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(77, 701, generator=random).bfloat16()
    bias = torch.randn(77, generator=random).bfloat16()
    x = torch.randn(40, 701, generator=random).bfloat16()
    product = Bfloat16CpuProduct(weight, bias, batch_invariant=True)
    whole = product(x)
    expected = x.double() @ weight.double().T + bias.double()
    bound = 2**-8 * expected.abs() + 2**-16 * (x.double().abs() @ weight.double().abs().T)
    error = float(((whole.double() - expected).abs() / bound).max())
    few = (product(x[:rows]) for rows in (1, 2, 3, 4, 5, 6, 7, 13))
    is_invariant = all(torch.equal(y, whole[: len(y)]) for y in few)
    print(json.dumps({"pairs": MULTIPLIES_PAIRS, "error": error, "is_invariant": is_invariant}))


if __name__ == "__main__":
    main()
