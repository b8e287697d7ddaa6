"""The tensors that hold keys and values in pages, and the number of pages."""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from ...kernels.pages.cells import CellFormat
from ..byte_sizes import as_given, in_units
from ..errors import ConfigError
from .interface.cache_spec import CacheSpec, PageGroup
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


WINDOWED_DIVISOR = 8
"""A windowed group has pages for the tokens of the cache divided by this number, or more: then prompts that
share few tokens with others, or end after a few windows, still find theirs."""
WINDOWS_PER_CONTEXT = 2
"""windows of each context that a windowed group has pages for: of a prompt's end and of its reply's"""
MIN_WINDOWED_TOKENS = 640
"""tokens besides a window for which a windowed group has pages at least: the chunks of a prompt in two steps
(`WindowGroup.max_held`)"""


class PoolSize(NamedTuple):
    pages: tuple[int, ...]
    """number of pages of each group; see `CacheSpec.group_layers`"""
    max_model_len: int
    states: int = 0
    """places for the states of recurrent layers"""

    @property
    def num_pages(self) -> int:
        """Number of pages of the group that sees all tokens."""
        return self.pages[0]


@dataclass(frozen=True)
class PoolLayout:
    """The groups of a model's layers, and how many pages each gets."""

    groups: tuple[PageGroup, ...]
    page_bytes: tuple[int, ...]
    """bytes of a page in all layers of each group; 1 if it has no layers, and its pages only count tokens"""
    page_size: int
    context: int

    @staticmethod
    def of(
        spec: CacheSpec, page_size: int, dtype: torch.dtype, context: int, is_stored: bool = False
    ) -> PoolLayout:
        """dtype: of the pool's tensors. is_stored: whether a page store keeps pages.

        One group has all layers, and no page behind a window is freed, in models with recurrent layers, which
        may go back to a checkpoint far behind, and in stored ones of which no layer sees all tokens, because
        the page store finds a prefix by that layer's pages.
        """
        groups = tuple(spec.group_layers(context))
        if spec.states or (is_stored and not groups[0].layers):
            groups = (PageGroup(tuple(range(spec.layers)), None),)
        sizes = tuple(
            max(1, sum(layer_page_bytes(spec, layer, page_size, dtype) for layer in group.layers))
            for group in groups
        )
        return PoolLayout(groups, sizes, page_size, context)

    def count_pieces(self, state_bytes: int) -> tuple[int, ...]:
        """How many pages of the first group are as large as a page of each group, or after the first one as a
        state of `state_bytes` bytes."""
        sizes = (*self.page_bytes, state_bytes) if state_bytes else self.page_bytes
        return tuple(-(-size // self.page_bytes[0]) for size in sizes)

    def count_places(self, pieces: Sequence[int]) -> int:
        """How many pages of the first group are as large as its page and what a token after it needs besides:
        all pages of windows, or a state. pieces: of `count_pieces`"""
        reaches = (group.reach or 1 for group in self.groups[1:])
        windows = [-(-reach // self.page_size) + 1 for reach in reaches] or [1] * (len(pieces) - 1)
        return 1 + sum(count * pages for count, pages in zip(pieces[1:], windows, strict=True))

    def add_bytes(self, more: int) -> PoolLayout:
        """The layout with `more` bytes for each page of the first group."""
        return replace(self, page_bytes=(self.page_bytes[0] + more, *self.page_bytes[1:]))

    def count_pages(self, num_pages: int) -> tuple[int, ...]:
        """The number of pages of each group beside `num_pages` of the group that sees all tokens."""
        return num_pages, *(self._count_windowed(group, num_pages) for group in self.groups[1:])

    def _count_windowed(self, group: PageGroup, num_pages: int) -> int:
        assert group.reach is not None
        share = max(
            num_pages // WINDOWED_DIVISOR, num_pages * WINDOWS_PER_CONTEXT * group.reach // self.context
        )
        least = -(-(group.reach + MIN_WINDOWED_TOKENS) // self.page_size) + 2
        return min(num_pages, max(share, least))

    def bytes(self, num_pages: int) -> int:
        """Bytes of all groups' pages, with `num_pages` of the group that sees all tokens."""
        counts = self.count_pages(num_pages)
        return sum(count * size for count, size in zip(counts, self.page_bytes, strict=True))

    def fit(self, budget: int, contexts: int) -> int:
        """The number of pages of the group that sees all tokens, if `budget` bytes hold all groups' pages and
        no more than `contexts` full contexts are needed."""
        most = contexts * -(-self.context // self.page_size)
        return bisect_right(range(1, most + 1), budget, key=self.bytes)

    def layer_pages(self, pages: Sequence[int]) -> list[int]:
        """The number of pages of each layer, from that of each group."""
        of_layer = {
            layer: count for group, count in zip(self.groups, pages, strict=True) for layer in group.layers
        }
        return [of_layer[layer] for layer in sorted(of_layer)]


def page_bytes(spec: CacheSpec, page_size: int, dtype: torch.dtype) -> int:
    """Bytes of one page in all layers; 1 if no layer has pages. dtype: dtype of the pool's tensors."""
    return max(1, sum(layer_page_bytes(spec, layer, page_size, dtype) for layer in range(spec.layers)))


def layer_page_bytes(spec: CacheSpec, layer: int, page_size: int, dtype: torch.dtype) -> int:
    kv_heads, head_dim = spec.kv_shape(layer)
    return 2 * kv_heads * page_size * CellFormat(dtype).bytes(head_dim)


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


def size_pool(*, budget: int, layout: PoolLayout, slots: int, context_was_asked: bool) -> PoolSize:
    """The number of pages that `budget` bytes hold, but no more than `slots` full contexts need.

    If the pages do not hold one context, shortens it, or raises ConfigError if the user asked for it.
    """
    context, page_size = layout.context, layout.page_size
    needed = -(-context // page_size)
    pages = layout.fit(budget, slots)
    if pages >= needed:
        return PoolSize(layout.count_pages(pages), context)
    if pages and not context_was_asked:
        return PoolSize(layout.count_pages(pages), pages * page_size)
    raise ConfigError(
        f"--kv-memory {as_given(budget)} holds {pages * page_size:,} tokens, but --max-model-len is "
        f"{context:,}: one request of that length needs {in_units(layout.bytes(needed), up=True)}. "
        "Raise --kv-memory or lower --max-model-len."
    )


def allocate_pool(
    spec: CacheSpec,
    num_pages: Sequence[int],
    page_size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> list[torch.Tensor]:
    """Each layer's cache, zeros: [2, kv_heads, pages, page_size, cell] (see `CellFormat`).

    num_pages: of each layer

    On the CPU segments stand in place of pages (see `kernels.pages.segments`). The last one may have
    room for a few pages more.
    """
    kvs = []
    for layer, count in enumerate(num_pages):
        kv_heads, head_dim = spec.kv_shape(layer)
        cell = CellFormat(dtype).elements(head_dim)
        if in_segments(device):
            pages = segment_pages(layer_page_bytes(spec, layer, page_size, dtype), page_size, count)
            shape = (-(-count // pages), 2, kv_heads, pages * page_size, cell)
            kvs.append(_untouched_zeros(shape, dtype).permute(1, 2, 0, 3, 4))
        else:
            shape = (2, kv_heads, count, page_size, cell)
            kvs.append(torch.zeros(shape, dtype=dtype, device=device))
    return kvs


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
