"""Rows of FP8 weights, widened."""

import numpy as np
import torch

from ..common.jit import compiled
from ..common.numba_tools import fetch_add, pointer, shifted
from ..common.rows import number_at
from ..common.threads import ParallelKernel
from .bfloat16_tile import OUTPUTS
from .quantized_tiles import store_row

VALUES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
"""of the codes, float32 [256]"""


@ParallelKernel
def expand_rows(arguments):
    """Arguments: the counter of rows, then those of `Fp8Product.rows`: the rows, the numbers of their outputs
    and the bytes of a number; codes, places, `VALUES` and scales; inputs and inputs of a group; the results
    and their kind, of `quantized_cpu.KINDS`."""
    while True:
        row = fetch_add(arguments, 1)
        if row >= arguments[1]:
            break
        weights = np.empty(arguments[8], np.float32)
        _expand(arguments, number_at(arguments[2], arguments[3], row), weights)
        store_row(weights, arguments[10], row, arguments[11])


@compiled
def _expand(arguments, output, weights):
    """Writes the weights of an output, float32 [inputs]."""
    inputs, group = arguments[8], arguments[9]
    pairs, groups = (inputs + 1) // 2, (inputs + group - 1) // group
    strip, lane = output // OUTPUTS, output % OUTPUTS
    codes = shifted(pointer(arguments[4], np.uint8(0)), strip * pairs * 2 * OUTPUTS)
    place = pointer(arguments[5], np.int64(0))[lane]
    values = pointer(arguments[6], np.float32(0))
    scales = shifted(pointer(arguments[7], np.float32(0)), strip * groups * OUTPUTS + lane)
    for i in range(inputs):
        code = codes[(i // 2 * OUTPUTS + place) * 2 + i % 2]
        weights[i] = values[code] * scales[i // group * OUTPUTS]
