"""The sizes of attention's tiles on CUDA, and how many programs with them run at the same time.

`tests/kernels/test_aot.py` compiles the kernels with these tiles and checks both.
"""

from dataclasses import dataclass
from functools import cache

import torch
import triton
from triton.runtime import driver

LARGE_SHARED_MEMORY = 160 << 10
"""bytes for each block; datacenter GPUs have more, others 99 KiB"""

SINGLE, GROUP, CHUNK = 16, 64, 128
"""Queries of a tile for single rows, for groups and for chunks."""

PROGRAMS = {
    (SINGLE, 64): (4, 6, 6),
    (SINGLE, 128): (2, 3, 3),
    (SINGLE, 256): (2, 2, 2),
    (GROUP, 64): (3, 3, 3),
    (GROUP, 128): (1, 2, 2),
    (GROUP, 256): (1, 1, 1),
    (CHUNK, 64): (1, 2, 1),
    (CHUNK, 128): (1, 1, 1),
    (CHUNK, 256): (1, 1, 1),
}
"""How many programs a multiprocessor runs at a time on GPUs like sm_80, sm_90 and sm_100, by the queries of
a tile and the padded size of heads."""


@cache
def architecture() -> int:
    """The compute capability of the GPU, 90 for 9.0; without a GPU that of an H200."""
    if not torch.cuda.is_available():
        return 90
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


@cache
def shared_memory() -> int:
    """Bytes of shared memory that a program may use; without a GPU those of an H200."""
    if not torch.cuda.is_available():
        return 227 << 10
    return int(driver.active.utils.get_device_properties(torch.cuda.current_device())["max_shared_mem"])


def generation(architecture: int) -> int:
    """Returns which matrix instructions a GPU has: 1 for `wgmma` (sm_90), 2 for `tcgen05` (sm_100), 0 for
    others. With 0, one warp multiplies 16 queries. With 1 and 2, four warps multiply at least 64, and keep
    the sums in registers (1) or in tensor memory (2)."""
    return 0 if architecture < 90 or architecture >= 120 else 1 if architecture < 100 else 2


@dataclass(frozen=True)
class Tiles:
    """How the kernel is compiled for one kind of item."""

    queries: int
    keys: int
    warps: int

    @staticmethod
    def choose(
        queries: int, repeat: int, head_dim: int, element_size: int, gpu: int | None = None
    ) -> "Tiles":
        """The largest tiles whose loops spill no registers.

        queries: query heads for each KV head in the largest item; at least `repeat`, those of one token
        gpu: the architecture, if not that of this GPU
        """
        if element_size == 4:
            return Tiles(max(16, triton.next_power_of_2(repeat)), 16, 4)
        if queries <= SINGLE:
            return Tiles(SINGLE, 32 if head_dim > 128 else 64, 4)
        matrices = generation(gpu or architecture())
        if head_dim > 128:
            tokens = CHUNK if matrices and queries > GROUP else GROUP
            warps = 4 if tokens == GROUP and matrices == 1 else 8
            return Tiles(max(tokens, triton.next_power_of_2(repeat)), 32, warps)
        if queries <= GROUP:
            return Tiles(GROUP, 64, 4 if matrices or head_dim <= 64 else 8)
        return Tiles(CHUNK, 64 if matrices else 32, 8)

    def of_scaled_cells(self) -> "Tiles":
        """The tiles with fewer keys for each warp, as widening their codes takes registers."""
        return Tiles(self.queries, max(16, self.keys // 2), self.warps)


def programs_of_processor(tiles: Tiles, head_dim: int) -> int:
    """How many programs a multiprocessor runs at the same time."""
    if shared_memory() < LARGE_SHARED_MEMORY:
        return 1
    programs = PROGRAMS.get((tiles.queries, pad(head_dim)))
    return programs[generation(architecture())] if programs else 1


def pad(head_dim: int) -> int:
    """The size of heads in `PROGRAMS`."""
    return max(64, int(triton.next_power_of_2(head_dim)))


def stages(head_dim: int) -> int:
    """Triton's `num_stages`: with 3, two blocks of keys and values are copied ahead, with 2 one."""
    return 3 if head_dim <= 128 or shared_memory() >= LARGE_SHARED_MEMORY else 2
