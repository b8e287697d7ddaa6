"""What decides in which order the CPU kernels add up."""

import torch
from llvmlite import binding

from .compiled_code import version


def arithmetic() -> str:
    """Names the kernels' version, PyTorch's, the processor and the number of threads.

    Where all are the same, equal inputs give equal bits.
    """
    processor = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    return f"{version()} {torch.__version__} {processor} {torch.get_num_threads()}"
