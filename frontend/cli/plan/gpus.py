"""GPUs that `arbora plan` knows: their memory, bandwidth and rates, each with its source.

In November 2026 the figures were compared with public copies of the sources and tables of specifications.
Three figures are derived: the matrix rates of `a10` (72 multiprocessors × 1,024 operations × 1.695 GHz) and
of `rtx-3090` (half of its 142e12 with float16 sums), and the memory of `b200`, an eighth of the system's. No
published source was found for the memory of `rtx-3090` and `rtx-4090`.
"""

from __future__ import annotations

from typing import NamedTuple

from ....runtime.errors import ConfigError
from ...core.text.close_names import did_you_mean

GB, MIB = 10**9, 2**20


class Gpu(NamedTuple):
    memory: int
    """bytes that the driver reports"""
    bandwidth: float
    """bytes a second"""
    matrix_rate: float
    """floating-point operations a second in bfloat16 with float32 sums, without sparsity"""
    float32_rate: float
    """floating-point operations a second in float32, without TF32"""
    source: str
    """where the bandwidth and the rates are published"""


GPUS = {
    "a10": Gpu(23028 * MIB, 600e9, 125e12, 31.2e12, "NVIDIA A10 data sheet"),
    "a100-80gb": Gpu(81920 * MIB, 2039e9, 312e12, 19.5e12, "NVIDIA A100 80GB SXM data sheet"),
    "b200": Gpu(180 * GB, 8e12, 2250e12, 75e12, "NVIDIA DGX B200 data sheet, an eighth of the system"),
    "h100-pcie": Gpu(81559 * MIB, 2e12, 756e12, 51e12, "NVIDIA H100 data sheet, PCIe"),
    "h100-sxm": Gpu(81559 * MIB, 3.35e12, 989.4e12, 66.9e12, "NVIDIA H100 data sheet, SXM5"),
    "h200": Gpu(143771 * MIB, 4.8e12, 989.4e12, 66.9e12, "NVIDIA H200 data sheet, SXM"),
    "l4": Gpu(23034 * MIB, 300e9, 121e12, 30.3e12, "NVIDIA L4 data sheet, half of the sparse rate"),
    "l40s": Gpu(46068 * MIB, 864e9, 362e12, 91.6e12, "NVIDIA L40S data sheet"),
    "rtx-3090": Gpu(24576 * MIB, 936e9, 71e12, 35.6e12, "NVIDIA Ampere GA102 white paper"),
    "rtx-4090": Gpu(24564 * MIB, 1008e9, 165.2e12, 82.6e12, "NVIDIA Ada white paper"),
}


def gpu_named(name: str) -> Gpu:
    """Finds a GPU by its name. Raises ConfigError with the known names."""
    key = name.lower().replace("_", "-").replace(" ", "-")
    if key not in GPUS:
        versions = [known for known in GPUS if known.startswith(f"{key}-")]
        meant = f" Did you mean {' or '.join(versions)}?" if versions else did_you_mean(key, GPUS)
        raise ConfigError(
            f"--gpu {name}: this GPU is not in the table.{meant} It has {', '.join(GPUS)}. "
            "For another give its --memory, which leaves the estimates of speed out."
        )
    return GPUS[key]
