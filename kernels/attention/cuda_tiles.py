"""The sizes of attention's tiles on CUDA, and how many programs with them run at the same time.

`tests/kernels/test_aot_attention.py` compiles the kernels with these tiles and checks both.
"""

from dataclasses import dataclass
from functools import cache

import torch
import triton

LARGE_SHARED_MEMORY = 160 << 10
"""bytes for each block; datacenter GPUs have more, others 99 KiB"""

SINGLE, GROUP, CHUNK = 16, 64, 128
"""Queries of a tile for single rows, for groups and for chunks."""

PROGRAMS = {
    (SINGLE, 64): (4, 6),
    (SINGLE, 128): (2, 3),
    (SINGLE, 256): (2, 3),
    (GROUP, 64): (1, 3),
    (GROUP, 128): (1, 2),
    (GROUP, 256): (1, 1),
    (CHUNK, 64): (1, 2),
    (CHUNK, 128): (1, 1),
    (CHUNK, 256): (1, 1),
}
"""Programs that a multiprocessor runs at a time, by the queries of a tile and the size of heads: on sm_80,
and with products of warp groups."""


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
    return int(torch.cuda.get_device_properties().shared_memory_per_block_optin)


def has_warp_groups(architecture: int) -> bool:
    """Whether four warps multiply 64 queries at once: `wgmma` of sm_90, `tcgen05` of sm_100."""
    return 90 <= architecture < 120


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
        warp_groups = has_warp_groups(gpu or architecture())
        if head_dim > 128:
            tokens = CHUNK if warp_groups and queries > GROUP else GROUP
            fits = tokens == GROUP and 90 <= (gpu or architecture()) < 100
            return Tiles(max(tokens, triton.next_power_of_2(repeat)), 32, 4 if fits else 8)
        if queries <= GROUP:
            return Tiles(GROUP, 64, 4 if warp_groups else 8)
        return Tiles(CHUNK, 64 if warp_groups else 32, 8)

    def of_scaled_cells(self) -> "Tiles":
        """The tiles with fewer keys for each warp, as widening their codes takes registers."""
        return Tiles(self.queries, max(16, self.keys // 2), self.warps)


def programs_of_processor(tiles: Tiles, head_dim: int) -> int:
    """How many programs a multiprocessor runs at the same time."""
    if shared_memory() < LARGE_SHARED_MEMORY:
        return 1
    dims = max(64, triton.next_power_of_2(head_dim))
    return PROGRAMS.get((tiles.queries, dims), (1, 1))[has_warp_groups(architecture())]


def stages(head_dim: int) -> int:
    """Stages of Triton's software pipeline. Three stages copy two blocks of keys and values ahead."""
    return 3 if head_dim <= 128 or shared_memory() >= LARGE_SHARED_MEMORY else 2
