"""Steps of attention that `bench/kernels.py` measures, at the shapes of a 0.6B Qwen3."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from arbora.kernels.attention import AttentionBatch, paged_attention
from arbora.kernels.pages.cells import CellFormat
from arbora.runtime.model.kv_pool import segment_pages
from kernel_case import HEAD_DIM, HEADS, KV_HEADS, PAGE_SIZE, WORKING_SET, Case

CPU = torch.device("cpu")


def cache(pages: int, kv_heads: int, head_dim: int, cells: CellFormat) -> torch.Tensor:
    """A layer's cache as a server arranges it, with random contents."""
    page_bytes = 2 * kv_heads * PAGE_SIZE * cells.bytes(head_dim)
    in_segment = segment_pages(page_bytes, PAGE_SIZE, pages)
    shape = (-(-pages // in_segment), 2, kv_heads, in_segment * PAGE_SIZE, head_dim)
    return cells.encode(torch.randn(shape)).permute(1, 2, 0, 3, 4)


def attention_case(
    name: str,
    queries: list[int],
    lengths: list[int],
    groups: tuple[tuple[int, int, int], ...] = (),
    scattered: bool = False,
    shape: tuple[int, int, int] = (HEADS, KV_HEADS, HEAD_DIM),
    stored: torch.dtype = torch.bfloat16,
    dtype: torch.dtype = torch.bfloat16,
    shared: tuple[tuple[int, int, int], ...] | None = None,
) -> Case:
    """shared: the rows that have the same pages, as (first row, number of rows, shared keys), whether or not
    they are a group; by default as `groups`"""
    heads, kv_heads, head_dim = shape
    counts = [-(-length // PAGE_SIZE) for length in lengths]
    ids = np.random.default_rng(0).permutation(sum(counts)) if scattered else np.arange(sum(counts))
    tables = [part.astype(np.int32) for part in np.split(ids, np.cumsum(counts)[:-1])]
    for first, count, keys in groups if shared is None else shared:
        for row in range(first + 1, first + count):
            tables[row][: keys // PAGE_SIZE] = tables[first][: keys // PAGE_SIZE]
    used, ids = np.unique(np.concatenate(tables), return_inverse=True)
    tables = [part.astype(np.int32) for part in np.split(ids, np.cumsum(counts)[:-1])]
    unused = PAGE_SIZE * sum(counts) - sum(lengths)  # at the ends of rows
    cells = CellFormat(stored)
    token_bytes = 2 * kv_heads * cells.bytes(head_dim)
    layer = len(used) * PAGE_SIZE * token_bytes
    layers = [
        cache(len(used), kv_heads, head_dim, cells) for _ in range(max(1, min(28, WORKING_SET // layer)))
    ]
    q = torch.randn(sum(queries), heads, head_dim).to(dtype)
    batch = AttentionBatch.build(queries, lengths, tables, PAGE_SIZE, CPU, groups)
    pairs = sum(n * length - n * (n - 1) // 2 for n, length in zip(queries, lengths, strict=True))
    return Case(
        f"attention, {name}" + (", int8" if stored == torch.int8 else ""),
        lambda turn: paged_attention(q, layers[turn % len(layers)], batch, head_dim**-0.5),
        read=(len(used) * PAGE_SIZE - unused) * token_bytes,
        flops=4 * heads * head_dim * pairs,
    )


def attention_cases() -> Iterator[Case]:
    yield attention_case("1 row x 500", [1], [500])
    yield attention_case("1 row x 2500", [1], [2500])
    yield attention_case("4 rows x 2048", [1] * 4, [2048] * 4)
    yield attention_case("4 rows x 2048, scattered pages", [1] * 4, [2048] * 4, scattered=True)
    yield attention_case("8 rows x 500", [1] * 8, [500] * 8)
    yield attention_case("4 rows x 2100 of which 2048 shared", [1] * 4, [2100] * 4, ((0, 4, 2048),))
    yield attention_case("8 rows x 2100 of which 2048 shared", [1] * 8, [2100] * 8, ((0, 8, 2048),))
    yield attention_case("200 rows x 200, 4/2 heads of 64", [1] * 200, [200] * 200, shape=(4, 2, 64))
    for chunk, prefix in ((64, 0), (64, 500), (256, 0), (256, 2048), (1024, 0), (1024, 2048)):
        yield attention_case(f"chunk of {chunk} after {prefix}", [chunk], [prefix + chunk])


def kv_dtype_cases() -> Iterator[tuple[Case, Case]]:
    """Pairs of a case in bfloat16 and the same in int8."""
    shared = ((0, 8, 2048),)
    steps: list[tuple[str, list[int], list[int], tuple[tuple[int, int, int], ...], bool]] = [
        ("1 row x 2500", [1], [2500], (), False),
        ("4 rows x 2048", [1] * 4, [2048] * 4, (), False),
        ("4 rows x 2048, scattered pages", [1] * 4, [2048] * 4, (), True),
        ("8 rows x 500", [1] * 8, [500] * 8, (), False),
        ("8 rows x 2100 of which 2048 shared", [1] * 8, [2100] * 8, shared, False),
    ]
    for chunk, prefix in ((64, 500), (256, 2048), (1024, 2048)):
        steps.append((f"chunk of {chunk} after {prefix}", [chunk], [prefix + chunk], (), False))
    for step in steps:
        yield attention_case(*step), attention_case(*step, stored=torch.int8)


def tree_cases() -> Iterator[list[Case]]:
    """Yields cases to compare: one step with different groups, or steps that show what sharing saves."""
    for rows, system, together, document, length in ((64, 1024, 8, 2048, 2304), (16, 512, 2, 1536, 1600)):
        everyone = ((0, rows, system),)
        documents = tuple((first, together, document) for first in range(0, rows, together))
        both = (*everyone, *documents)
        tree = {"no group": (), "system prompt": everyone, "documents": documents, "both": both}
        yield [
            attention_case(
                f"{rows} rows x {length} in 8 documents: {name}",
                [1] * rows,
                [length] * rows,
                groups,
                shared=both,
            )
            for name, groups in tree.items()
        ]
    for rows in (2, 4, 8):
        of_all = ((0, rows, 2000),)
        yield [
            attention_case(
                f"{rows} rows x 2100 in a document: {name}",
                [1] * rows,
                [2100] * rows,
                groups,
                shared=of_all,
            )
            for name, groups in {"no group": (), "a group": of_all}.items()
        ]
    for rows, tokens in ((2, 4), (2, 8), (5, 8), (2, 16), (5, 16), (2, 35), (5, 35), (2, 64), (2, 256)):
        yield chunk_cases(0, [tokens] * rows)
    for decode_rows in (1, 2, 3, 7):
        for chunks in ([2], [4], [4, 4], [8], [16], [64]):
            yield chunk_cases(decode_rows, chunks)


def chunk_cases(decode_rows: int, chunks: list[int]) -> list[Case]:
    """A step of decode rows and chunks after the same 2,000 tokens, the chunks without a group and in it."""
    queries = [1] * decode_rows + chunks
    document, apart = ((0, len(queries), 2000),), ((0, decode_rows, 2000),)
    tree = {"chunks apart": apart if decode_rows > 1 else (), "one group": document}
    return [
        attention_case(
            f"{decode_rows} rows, chunks of {chunks}: {name}",
            queries,
            [2000 + tokens for tokens in queries],
            groups,
            shared=document,
        )
        for name, groups in tree.items()
    ]


def flash_cases() -> Iterator[list[Case]]:
    """Chunks without tiles by our kernel, and by PyTorch's flash attention over contiguous keys."""
    for dtype in (torch.float32, torch.float16):
        for prefix in (0, 500, 2000, 8000):
            for tokens in (4, 16, 64, 256, 1024):
                name = f"{tokens} after {prefix}, {str(dtype).removeprefix('torch.')}"
                ours = attention_case(name, [tokens], [prefix + tokens], stored=dtype, dtype=dtype)
                yield [ours, flash_case(name, tokens, prefix, dtype)]


def flash_case(name: str, tokens: int, prefix: int, dtype: torch.dtype) -> Case:
    """PyTorch's flash attention of a chunk to the tokens before it and to itself, without merging both."""
    length = prefix + tokens
    copies = max(1, WORKING_SET // (2 * KV_HEADS * length * HEAD_DIM * dtype.itemsize))
    keys = [torch.randn(2, 1, KV_HEADS, length, HEAD_DIM).to(dtype) for _ in range(min(28, copies))]
    query = torch.randn(1, HEADS, tokens, HEAD_DIM).to(dtype)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def run(turn: int) -> None:
        k, v = keys[turn % len(keys)]
        flash(query, k[:, :, prefix:], v[:, :, prefix:], 0.0, True)
        if prefix:
            flash(query, k[:, :, :prefix], v[:, :, :prefix], 0.0, False)

    return Case(f"attention, {name}: PyTorch", run)
