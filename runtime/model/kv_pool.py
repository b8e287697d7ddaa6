"""The tensors that hold keys and values in pages, and the number of pages."""

from __future__ import annotations

import mmap
from typing import NamedTuple

import torch

from ...kernels.pages.cells import CellFormat
from ..byte_sizes import as_given, in_units
from ..errors import ConfigError
from .interface.cache_spec import CacheSpec
from .interface.model import ModelConfig

CPU_SHARE = 0.4
"""share of the free memory for the KV cache, unless --kv-memory says otherwise"""
MAX_CPU_BYTES = 4 << 30
HUGE_PAGE_BYTES = 2 << 20
SEGMENT_TOKENS = 256
"""minimal number of tokens in a segment. Within a segment the keys of a head are contiguous."""
CUDA_SHARE = 0.9
CUDA_STEP_TOKENS = 8192
"""tokens of a step for whose activations memory is kept free"""


class PoolSize(NamedTuple):
    num_pages: int
    max_model_len: int
    states: int = 0
    """places for the states of recurrent layers"""


def page_bytes(spec: CacheSpec, page_size: int, dtype: torch.dtype) -> int:
    """Bytes of one page in all layers; 1 if no layer has pages, which then only count tokens. dtype: dtype of
    the pool's tensors."""
    cells = 2 * spec.layers * spec.kv_heads * page_size
    return max(1, cells * CellFormat(dtype).bytes(spec.head_dim))


def default_budget(
    config: ModelConfig, dtype: torch.dtype, device: torch.device, free: int, graph_bytes: int = 0
) -> int:
    """Bytes for the pages out of `free` bytes after the weights are loaded.

    graph_bytes: bytes of CUDA graphs that are captured after the pages are allocated
    """
    if device.type == "cpu":
        return min(MAX_CPU_BYTES, int(free * CPU_SHARE))
    token = (4 * config.hidden_size + 4 * config.intermediate_size) * dtype.itemsize
    others = CUDA_STEP_TOKENS * token + graph_bytes
    return max(0, int(free * CUDA_SHARE) - others)


def context_length(config: ModelConfig, asked: int | None) -> int:
    """The longest context in tokens. Raises ConfigError if the model has fewer positions than asked for."""
    if asked is None:
        return config.default_positions
    if not 1 <= asked <= config.max_positions:
        raise ConfigError(
            f"--max-model-len {asked}: the model's positions allow 1 to {config.max_positions} tokens."
        )
    return asked


def size_pool(
    *, budget: int, bytes_per_page: int, page_size: int, slots: int, context: int, context_was_asked: bool
) -> PoolSize:
    """The number of pages that `budget` bytes hold, but no more than `slots` full contexts need.

    If the pages do not hold one context, shortens it, or raises ConfigError if the user asked for it.
    """
    needed = -(-context // page_size)
    pages = min(budget // bytes_per_page, slots * needed)
    if pages >= needed:
        return PoolSize(pages, context)
    if pages and not context_was_asked:
        return PoolSize(pages, pages * page_size)
    raise ConfigError(
        f"--kv-memory {as_given(budget)} holds {pages * page_size:,} tokens, but --max-model-len is "
        f"{context:,}: one request of that length needs {in_units(needed * bytes_per_page, up=True)}. "
        "Raise --kv-memory or lower --max-model-len."
    )


def allocate_pool(
    spec: CacheSpec,
    num_pages: int,
    page_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> list[torch.Tensor]:
    """Each layer's cache, zeros: [2, kv_heads, num_pages, page_size, cell] (see `CellFormat`).

    On the CPU segments stand in place of pages (see `kernels.pages.segments`). The last one may have
    room for a few pages more.
    """
    cell = CellFormat(dtype).elements(spec.head_dim)
    if not spec.layers:
        return []
    if not in_segments(device):
        shape = (2, spec.kv_heads, num_pages, page_size, cell)
        return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(spec.layers)]
    layer_page_bytes = page_bytes(spec, page_size, dtype) // max(1, spec.layers)
    pages = segment_pages(layer_page_bytes, page_size, num_pages)
    segments = -(-num_pages // pages)
    shape = (segments, 2, spec.kv_heads, pages * page_size, cell)
    return [_untouched_zeros(shape, dtype).permute(1, 2, 0, 3, 4) for _ in range(spec.layers)]


def in_segments(device: torch.device) -> bool:
    """Whether the cache is stored in segments, which only the CPU's kernels can read."""
    return device.type == "cpu"


def segment_pages(layer_page_bytes: int, page_size: int, num_pages: int) -> int:
    """The number of pages of a segment. In one layer it fills at least a huge page, and it has at least
    `SEGMENT_TOKENS` tokens. Among numbers from this minimum to its double, chooses the one
    that leaves the least unused room in the last segment."""
    least = max(-(-HUGE_PAGE_BYTES // layer_page_bytes), -(-SEGMENT_TOKENS // page_size))
    if num_pages <= least:
        return num_pages
    return min(range(least, 2 * least), key=lambda pages: -num_pages % pages)


def _untouched_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros without memory yet. The system gives it when `PageMemory` asks for it or a page is written, in
    huge pages if it has them."""
    size = torch.Size(shape).numel() * dtype.itemsize
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
