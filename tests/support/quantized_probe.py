"""Prints a digest of quantized products' bits, and how bytes are multiplied, for the processor that numba
compiles for."""

import hashlib
import json

import torch
from arbora.kernels.linear import CodedShape
from arbora.kernels.linear.byte_dots import dot_width
from arbora.kernels.linear.integer import IntegerCpuPacker


def digest() -> str:
    results = hashlib.sha256()
    random = torch.Generator().manual_seed(0)
    for bits, has_factors in ((4, False), (8, False), (4, True), (5, True), (6, True)):
        middle = 1 << (bits - 1)
        for group, inputs, zero in (
            (32, 3072, middle),
            (16, 3072, None),
            (48, 3072, 7),
            (128, 1024, middle),
            (64, 1024, None),
            (32, 96, middle),
            (80, 400, None),
            (96, 384, middle),
        ):
            if has_factors and (group > 32 or inputs % 256):
                continue
            shape = CodedShape(77, inputs, bits, group, zero, has_factors)
            codes = torch.randint(0, 1 << bits, (shape.outputs, shape.inputs), generator=random).byte()
            scales = torch.rand(shape.outputs, shape.inputs // group, generator=random)
            packer = IntegerCpuPacker(shape)
            factors = None
            if has_factors:
                factors = torch.rand(1 if zero is not None else 2, 77, inputs // 256, generator=random)
                scales = (scales * 256 - 128).floor() * factors[:1].repeat_interleave(256 // group, 2)[0]
            offsets = None
            if zero is None:
                of_groups = None if factors is None else factors[1].repeat_interleave(256 // group, 1)
                offsets = -3 * scales if of_groups is None else of_groups
            packer.write(0, codes, scales, offsets, factors)
            product = packer.product(torch.randn(shape.outputs, generator=random), batch_invariant=True)
            x = torch.randn(150, shape.inputs, generator=random) * 3
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                for rows in (1, 2, 4, 9, 40, 150):
                    y = product(x[:rows].to(dtype))
                    results.update(y.view(torch.uint8).numpy().tobytes())
    return results.hexdigest()


if __name__ == "__main__":
    print(json.dumps([dot_width(), digest()]))
