"""Prints the bytes of anonymous memory that products of 300 numbers of rows leave in use.

python product_memory.py packed|strips
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeAlias

import torch
from arbora.kernels.linear.half_cpu import HalfCpuProduct
from arbora.kernels.linear.onednn import OneDnnProduct
from arbora.runtime.system_memory import give_back_freed_memory
from loaded_memory import allow_no_huge_pages, anonymous

MAX_ROWS = 8192
SIDE = 64
Product: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
PRODUCTS: dict[str, tuple[Callable[[torch.Tensor, None], Product], torch.dtype]] = {
    "packed": (OneDnnProduct, torch.float32),
    "strips": (HalfCpuProduct, torch.float16),
}


def main() -> None:
    allow_no_huge_pages()
    make, dtype = PRODUCTS[sys.argv[1]]
    product, x = make(torch.randn(SIDE, SIDE, dtype=dtype), None), torch.randn(MAX_ROWS, SIDE, dtype=dtype)
    for rows in (20, MAX_ROWS):
        product(x[:rows])
    before = memory_in_use()
    for rows in range(30, MAX_ROWS, MAX_ROWS // 300):
        product(x[:rows])
    print(memory_in_use() - before)


def memory_in_use() -> int:
    """Leaves out what was freed, of which the C library keeps more or less by chance."""
    give_back_freed_memory()
    return anonymous()


if __name__ == "__main__":
    main()
