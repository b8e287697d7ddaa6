"""The processor: its cores, the masks that bind threads to them, and the name of its arithmetic."""

from functools import cache
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from llvmlite import binding

from ...runtime.compiled_code import version
from ...runtime.system_cores import Core, find_cores

_KERNELS = Path(__file__).parents[1]


@cache
def cores() -> list[Core]:
    """The physical cores by NUMA nodes, as far as this process could use them at the first call; [] if the
    system does not tell."""
    return find_cores()


def nodes() -> list[list[Core]]:
    """The cores of each NUMA node that has some."""
    return [list(some) for _, some in groupby(cores(), key=lambda core: core.node)]


def cores_of_threads(threads: int) -> list[Core]:
    """A core for each thread. Fewer threads than cores are spread over all nodes."""
    return [cores()[number * len(cores()) // threads] for number in range(threads)]


@cache
def thread_masks(threads: int) -> np.ndarray | None:
    """uint8 [1 + threads, bytes]: Linux's CPU masks, of all cores and then of each thread.

    If there is a thread for each core, it gets that core. Fewer threads leave cores to other programs, and no
    process can know which of the cores these use, so each gets all cores of a node. None: no thread is bound,
    as there is a single thread or a single node, or there are more threads than cores.
    """
    if threads == 1 or threads > len(cores()) or (threads < len(cores()) and len(nodes()) == 1):
        return None
    all_cpus = [cpu for core in cores() for cpu in core.cpus]
    chosen = [list(core.cpus) for core in cores_of_threads(threads)]
    if threads < len(cores()):
        of_node = {some[0].node: [cpu for core in some for cpu in core.cpus] for some in nodes()}
        chosen = [of_node[core.node] for core in cores_of_threads(threads)]
    bits = np.zeros((threads + 1, (max(all_cpus) // 64 + 1) * 64), np.uint8)
    for mask, cpus in zip(bits, [all_cpus, *chosen], strict=True):
        mask[cpus] = 1
    return np.packbits(bits, axis=1, bitorder="little")


def arithmetic() -> str:
    """The kernels' version, PyTorch's version, the processor and the number of threads.

    Where all are the same, sums are added in the same order, and equal inputs give equal bits.
    """
    processor = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    return f"{version(_KERNELS)} {torch.__version__} {processor} {torch.get_num_threads()}"
