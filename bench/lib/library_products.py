"""Products of PyTorch and oneDNN with the same kinds of weights as ours, to compare their times.

Each function packs a random weight [outputs, inputs] as the library wants it, and returns the product with
bfloat16 activations [rows, inputs]. The results are not used, so the weights' values do not matter.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Product = Callable[[torch.Tensor], object]


def onednn_bfloat16(outputs: int, inputs: int) -> Product:
    weight = torch.ops.mkldnn._reorder_linear_weight(torch.randn(outputs, inputs).bfloat16(), None)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def onednn_int8(outputs: int, inputs: int) -> Product:
    """Operations of PyTorch quantize the activations of each row, and apply both scales afterwards."""
    weight = torch.randint(-127, 128, (inputs, outputs), dtype=torch.int8)
    scales = torch.rand(outputs)

    def product(x: torch.Tensor) -> torch.Tensor:
        largest = x.abs().amax(1, keepdim=True).float() / 127
        codes = (x / largest).round().to(torch.int8)
        return (torch._int_mm(codes, weight) * (largest * scales)).bfloat16()

    return product


def pytorch_int8(outputs: int, inputs: int) -> Product:
    """Weights alone are quantized."""
    weight = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
    scales = torch.rand(outputs).bfloat16()
    return lambda x: torch._weight_int8pack_mm(x, weight, scales)


def pytorch_int4(outputs: int, inputs: int, group: int) -> Product:
    """Weights alone are quantized, by groups of inputs with a scale and a zero point."""
    codes = torch.randint(0, 16, (outputs, inputs), dtype=torch.int32)
    weight = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 2)
    tables = torch.rand(inputs // group, outputs, 2).bfloat16()
    return lambda x: torch.ops.aten._weight_int4pack_mm_for_cpu(x, weight, group, tables)
