"""The operations of the forward pass: one package for each, which chooses a kernel by the device of the
tensors.

CUDA tensors run Triton kernels, CPU tensors numba or oneDNN. `reference` has the same operations in plain
PyTorch; the tests compare both with it.
"""

from .compiled_code import keep_per_version

keep_per_version()
