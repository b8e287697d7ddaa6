"""Matrix products through oneDNN's packed weights, for the dtypes that the processor multiplies."""

import torch
import torch.nn.functional as F


def onednn_multiplies(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies this dtype on this processor."""
    if not torch._C._has_mkldnn:
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32


class OneDnnProduct:
    """Holds a copy of the weight in oneDNN's layout, which is read at memory bandwidth."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        rows = len(x)
        lacking = padded_rows(rows) - rows
        if lacking:
            x = F.pad(x, (0, 0, 0, lacking))
        return multiply(x, self._weight, self._bias)[:rows]


def multiply(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x wᵀ + bias. weight: [out, in], in PyTorch's or oneDNN's layout"""
    y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y


def padded_rows(rows: int) -> int:
    """The number of rows to compute: at least two, rounded up to one of eight sizes in each octave.

    oneDNN compiles code for every number of rows and every shape of weights. It keeps the code of the last
    1024 pairs, 0.6 MB each. Its code for one row adds in another order, so a row alone would be rounded
    differently.
    """
    if rows <= 16:
        return max(2, rows)
    step = 1 << ((rows - 1).bit_length() - 4)
    return -(-rows // step) * step
