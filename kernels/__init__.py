"""Operations of the forward pass: one module each, dispatched by the device of the tensors.

CUDA tensors run Triton kernels, CPU tensors run numba or oneDNN; `reference` holds the same operations
in plain PyTorch, which both are tested against.
"""
