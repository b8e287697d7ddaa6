"""Programmatic dependent launch: a kernel starts while the last programs of the one before it end.

A kernel that is launched so calls `wait_for_previous` in every program, before it reads or writes anything
that another kernel writes or reads. Then all earlier kernels have ended, as the one before waited for its own
predecessor.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda


@triton.jit
def wait_for_previous(DEPENDENT: tl.constexpr):
    if DEPENDENT:
        cuda.gdc_wait()


def launch_early(device: torch.device) -> dict[str, bool]:
    """The arguments of a launch: `DEPENDENT` of the kernel, and Triton's option."""
    allowed = device.type == "cuda" and _allows(device)
    return {"DEPENDENT": allowed, "launch_pdl": allowed}


@cache
def _allows(device: torch.device) -> bool:
    """Whether the GPU has the instruction: Hopper and later."""
    return torch.cuda.get_device_capability(device) >= (9, 0)
