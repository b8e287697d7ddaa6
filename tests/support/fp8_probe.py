"""Prints how far FP8 products are from float64, for the processor that numba compiles for."""

import hashlib
import json
from typing import Any

import torch
from arbora.kernels.linear import CodedShape
from arbora.kernels.linear.fp8 import Fp8CpuPacker
from arbora.kernels.linear.fp8_cpu import multiplies_pairs

ROUNDING = {torch.float32: 2**-23, torch.bfloat16: 2**-8, torch.float16: 2**-11}


def results() -> dict[str, Any]:
    """pairs: whether bfloat16 is multiplied in pairs; errors: the largest, as multiples of what roundings
    explain, by dtype; digest: of the bits of all bfloat16 results."""
    random = torch.Generator().manual_seed(0)
    bits, errors = hashlib.sha256(), dict.fromkeys(map(str, ROUNDING), 0.0)
    for group in (700, 32):
        shape = CodedShape(77, 700, None, group, 0)
        codes = torch.randn(shape.outputs, shape.inputs, generator=random).div(8).to(torch.float8_e4m3fn)
        scales = torch.rand(shape.outputs, shape.groups, generator=random)
        packer = Fp8CpuPacker(shape)
        packer.write(0, codes, scales)
        product = packer.product(None)
        weight = codes.double() * scales.double().repeat_interleave(group, 1)[:, : shape.inputs]
        x = torch.randn(40, shape.inputs, generator=random)
        for dtype, rounding in ROUNDING.items():
            for rows in (1, 2, 6, 9, 40):
                some = x[:rows].to(dtype)
                y = product(some)
                expected, magnitude = some.double() @ weight.T, some.double().abs() @ weight.abs().T
                bound = rounding * expected.abs() + magnitude * 2**-16
                error = float(((y.double() - expected).abs() / bound).max())
                errors[str(dtype)] = max(errors[str(dtype)], error)
                if dtype == torch.bfloat16:
                    bits.update(y.view(torch.uint8).numpy().tobytes())
    return {"pairs": multiplies_pairs(torch.bfloat16), "errors": errors, "digest": bits.hexdigest()}


if __name__ == "__main__":
    print(json.dumps(results()))
