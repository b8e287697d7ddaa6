"""Operations of the forward pass: one package each, dispatched by the device of the tensors.

CUDA tensors run Triton kernels, CPU tensors run numba or oneDNN; `reference` holds the same operations
in plain PyTorch, which both are tested against.
"""

from .compiled_code import keep_per_version

keep_per_version()
