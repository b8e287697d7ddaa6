"""Prints how far products of a half precision are from float64, for the processor that numba compiles for.

python half_probe.py bfloat16|float16
"""

import json
import sys

import torch
from arbora.kernels.linear.half_cpu import HalfCpuProduct
from arbora.kernels.linear.half_tile import MULTIPLIES_PAIRS


def main() -> None:
    """pairs: whether activations are multiplied in pairs; error: the largest, as a multiple of what roundings
    explain; is_invariant: whether rows have the same bits beside any others."""
    dtype: torch.dtype = getattr(torch, sys.argv[1])
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(77, 701, generator=random).to(dtype)
    bias = torch.randn(77, generator=random).to(dtype)
    x = torch.randn(40, 701, generator=random).to(dtype)
    product = HalfCpuProduct(weight, bias, batch_invariant=True)
    whole = product(x)
    expected = x.double() @ weight.double().T + bias.double()
    rounding = torch.finfo(dtype).eps / 2
    bound = rounding * expected.abs() + 2**-16 * (x.double().abs() @ weight.double().abs().T)
    error = float(((whole.double() - expected).abs() / bound).max())
    few = (product(x[:rows]) for rows in (1, 2, 3, 4, 5, 6, 7, 13))
    is_invariant = all(torch.equal(y, whole[: len(y)]) for y in few)
    print(json.dumps({"pairs": MULTIPLIES_PAIRS, "error": error, "is_invariant": is_invariant}))


if __name__ == "__main__":
    main()
