"""The name of the arithmetic that the CPU kernels run: where it is the same, so are the bits of results."""

import torch
from llvmlite import binding

from .compiled_code import version


def arithmetic() -> str:
    """The kernels' version, PyTorch's version, the processor and the number of threads.

    Where all are the same, sums are added in the same order, and equal inputs give equal bits.
    """
    processor = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    return f"{version()} {torch.__version__} {processor} {torch.get_num_threads()}"
