"""The processor: its cores, the masks that bind threads to them, and the name of its arithmetic."""

import os
from functools import cache
from pathlib import Path

import numpy as np
import torch
from llvmlite import binding

from ...runtime.compiled_code import version

_CPUS = Path("/sys/devices/system/cpu")
_KERNELS = Path(__file__).parents[1]


@cache
def cores() -> list[list[int]]:
    """The logical CPUs of each physical core, as far as this process could use them at the first call; [] if
    the system does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    found: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = _CPUS / f"cpu{cpu}/topology/thread_siblings_list"
        found.setdefault(siblings.read_text() if siblings.exists() else str(cpu), []).append(cpu)
    return list(found.values())


@cache
def core_masks() -> np.ndarray:
    """uint8 [1 + cores, bytes]: Linux's CPU masks, of all cores and then of each one."""
    all_cpus = [cpu for core in cores() for cpu in core]
    bits = np.zeros((len(cores()) + 1, (max(all_cpus, default=0) // 64 + 1) * 64), np.uint8)
    for mask, cpus in zip(bits, [all_cpus, *cores()], strict=True):
        mask[cpus] = 1
    return np.packbits(bits, axis=1, bitorder="little")


def arithmetic() -> str:
    """The kernels' version, PyTorch's version, the processor and the number of threads.

    Where all are the same, sums are added in the same order, and equal inputs give equal bits.
    """
    processor = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    return f"{version(_KERNELS)} {torch.__version__} {processor} {torch.get_num_threads()}"
