"""The operations of the forward pass: one package for each, which chooses a kernel by the device of the
tensors.

CUDA tensors run Triton kernels, CPU tensors numba or oneDNN. `reference` has the same operations in plain
PyTorch; the tests compare both with it.
"""

from pathlib import Path

import numba

from ..runtime import compiled_code

FOLDER = Path(__file__).parent

# Before the first kernel is defined: numba reads it when a function is decorated.
numba.config.CACHE_DIR = compiled_code.use_directory(FOLDER)
