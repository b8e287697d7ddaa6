"""With `batch_invariant` a token's result has the same bits in any batch, chunk, group and page table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from arbora.kernels.attention import AttentionBatch, Reach, paged_attention
from arbora.kernels.common import bfloat16_dots
from arbora.kernels.elementwise import add_rms_norm, rms_norm, silu_and_mul
from arbora.kernels.linear import Linear, half_cpu
from arbora.kernels.linear.invariant import SIZES, InvariantProduct, Product, invariant_sizes
from arbora.kernels.linear.onednn import OneDnnProduct, onednn_multiplies
from arbora.kernels.pages.cells import CellFormat
from hypothesis import example, given, settings
from hypothesis import strategies as st
from segmented import segmented

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
MOST = 600  # more rows than any tried size

# Attention


@dataclass(frozen=True)
class Sequence:
    """Queries, keys and values of one sequence: [tokens, heads, head_dim]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    @staticmethod
    def random(tokens: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> Sequence:
        shapes = [(tokens, count, head_dim) for count in (heads, kv_heads, kv_heads)]
        return Sequence(*(torch.randn(shape).to(dtype) for shape in shapes))

    def cached(
        self,
        page_size: int,
        copies: int,
        random: np.random.Generator,
        stored: torch.dtype | None = None,
    ) -> Cached:
        """This many copies of its keys and values in scattered pages of a segmented cache; all other values
        are NaN.

        stored: the cache's dtype, if not that of the queries
        """
        tokens, kv_heads, head_dim = self.k.shape
        pages = -(-tokens // page_size)
        ids = random.permutation(copies * pages + 3)
        kv = torch.full((2, kv_heads, len(ids), page_size, head_dim), float("nan"), dtype=self.k.dtype)
        tables = [ids[copy * pages : (copy + 1) * pages].astype(np.int32) for copy in range(copies)]
        position = torch.arange(tokens)
        for table in tables:
            page = torch.from_numpy(table).long()[position // page_size]
            for part, source in enumerate((self.k, self.v)):
                kv[part][:, page, position % page_size] = source.transpose(0, 1)
        cells = CellFormat(stored or kv.dtype).encode(kv)
        return Cached(segmented(cells, int(random.integers(1, pages + 1))), tables, page_size)


@dataclass(frozen=True)
class Cached:
    kv: torch.Tensor
    tables: list[np.ndarray]
    page_size: int


Part = tuple[int, int]
"""Query tokens [begin, end) of the sequence."""


def attended(
    sequence: Sequence,
    cached: Cached,
    parts: list[Part],
    copies: list[int],
    window: int | None,
    groups: tuple[tuple[int, int, int], ...] = (),
) -> list[torch.Tensor]:
    """The results of each part, all computed in one step; part i reads copy i of the keys and values."""
    batch = AttentionBatch.build(
        [end - begin for begin, end in parts],
        [end for _, end in parts],
        [cached.tables[copy] for copy in copies],
        cached.page_size,
        torch.device("cpu"),
        groups,
    )
    q = torch.cat([sequence.q[begin:end] for begin, end in parts])
    out = paged_attention(
        q, cached.kv, batch, sequence.q.shape[2] ** -0.5, Reach(window), batch_invariant=True
    )
    return list(torch.split(out, [end - begin for begin, end in parts]))


def nested(levels: list[tuple[int, int]], page_size: int) -> tuple[tuple[int, int, int], ...]:
    """Groups of the first rows, each within the one before. levels: (rows, shared keys), in any order"""
    rows = sorted((rows for rows, _ in levels), reverse=True)
    keys = sorted({keys // page_size * page_size for _, keys in levels} - {0})
    return tuple((0, *level) for level in zip(rows, keys, strict=False))


@pytest.mark.parametrize("tiles", [True, False])
@pytest.mark.parametrize("stored", [None, torch.int8], ids=["as computed", "int8"])
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=8, deadline=None)
@given(
    heads=st.sampled_from([(4, 4), (4, 2), (7, 1), (16, 2)]),
    head_dim=st.sampled_from([32, 64]),
    page_size=st.sampled_from([1, 2, 16, 64]),
    window=st.sampled_from([None, None, 9, 100, 700]),
    decoded=st.lists(st.integers(0, 1199), max_size=6),
    chunks=st.lists(st.tuples(st.integers(0, 1000), st.integers(2, 200)), max_size=3),
    levels=st.lists(st.tuples(st.integers(2, 12), st.integers(1, 1150)), max_size=3),
    grouped_tokens=st.sampled_from([1, 20]),
    seed=st.integers(0, 1000),
)
@example(  # differs if few queries are multiplied in another order
    heads=(4, 2),
    head_dim=32,
    page_size=1,
    window=100,
    decoded=[],
    chunks=[(192, 200)],
    levels=[],
    grouped_tokens=1,
    seed=11,
)
def test_attention_to_a_token_is_the_same_in_any_step(
    dtype: torch.dtype,
    stored: torch.dtype | None,
    tiles: bool,
    heads: tuple[int, int],
    head_dim: int,
    page_size: int,
    window: int | None,
    decoded: list[int],
    chunks: list[tuple[int, int]],
    levels: list[tuple[int, int]],
    grouped_tokens: int,
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    sequence = Sequence.random(1200, *heads, head_dim, dtype)
    with pytest.MonkeyPatch.context() as patch:
        if not tiles:
            patch.setattr(bfloat16_dots, "available", lambda: False)
        parts: list[Part] = []
        groups = nested(levels, page_size)
        for row in range(max((rows for _, rows, _ in groups), default=0)):
            shared = max(keys for _, rows, keys in groups if row < rows)
            tokens = int(random.integers(1, grouped_tokens + 1))
            at = int(random.integers(shared, 1201 - tokens))
            parts.append((at, at + tokens))
        copies = [0] * len(parts)
        others = [(at, at + 1) for at in decoded] + [(begin, begin + count) for begin, count in chunks]
        copies += random.integers(0, 2, len(others)).tolist()
        parts += others
        if not parts:
            return
        one = sequence.cached(page_size, 1, random, stored)
        two = sequence.cached(page_size, 2, random, stored)
        results = attended(sequence, two, parts, copies, window, groups)
        for (begin, end), result in zip(parts, results, strict=True):
            for at in {begin, (begin + end) // 2, end - 1}:
                alone = attended(sequence, one, [(at, at + 1)], [0], window)[0]
                assert torch.equal(result[at - begin], alone[0]), f"token {at} of [{begin}, {end})"


def test_without_batch_invariance_attention_depends_on_the_step() -> None:
    """Otherwise the tests above would show nothing: other rows change how items are split and merged."""
    torch.manual_seed(0)
    sequence = Sequence.random(1200, 4, 1, 64, torch.float32)  # bfloat16 may round the difference away
    cached = sequence.cached(16, 1, np.random.default_rng(0))
    device = torch.device("cpu")
    alone = AttentionBatch.build([1], [1200], cached.tables, 16, device)
    beside = AttentionBatch.build([1, 1], [1200, 1199], cached.tables * 2, 16, device, ((0, 2, 640),))
    one = paged_attention(sequence.q[1199:], cached.kv, alone, 0.125)
    two = paged_attention(sequence.q[[1199, 1198]], cached.kv, beside, 0.125)
    assert not torch.equal(one[0], two[0])


# Matrix products

SHAPES = [(96, 64), (97, 83), (64, 2048), (33, 3100)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
def test_a_rows_product_is_the_same_beside_any_others(
    bias: bool, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    weight = (torch.randn(shape) / shape[1] ** 0.5).to(dtype)
    linear = Linear.pack(weight, torch.randn(shape[0]).to(dtype) if bias else None, batch_invariant=True)
    x = torch.randn(MOST, shape[1]).to(dtype)
    expected = linear(x)
    random = np.random.default_rng(0)
    for rows in (1, 1, 2, 3, 5, 16, 17, 31, 100, 255, 257, 511):
        order = torch.from_numpy(random.permutation(MOST)[:rows])
        assert torch.equal(linear(x[order]), expected[order]), f"{rows} rows"


@pytest.mark.parametrize(
    "dtype", [dtype for dtype in DTYPES if onednn_multiplies(dtype) and not half_cpu.serves(dtype)]
)
def test_the_default_products_of_a_row_agree_too_where_onednn_multiplies(dtype: torch.dtype) -> None:
    linear = Linear.pack((torch.randn(64, 3072) / 55).to(dtype), None)
    x = torch.randn(64, 3072).to(dtype)
    alone = torch.cat([linear(row[None]) for row in x])
    assert torch.equal(linear(x), alone)


def test_the_largest_set_of_sizes_that_agree_is_found() -> None:
    def make(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
        """Few rows, and the numbers 96 and 128, are added in another order."""
        product = OneDnnProduct(weight, bias)
        backwards = OneDnnProduct(weight.flip(1).contiguous(), bias)

        def multiply(x: torch.Tensor) -> torch.Tensor:
            odd = len(x) < 4 or len(x) in (96, 128)
            return backwards(x.flip(1).contiguous()) if odd else product(x)

        return multiply

    sizes = invariant_sizes(make, 64, 512, torch.float32, False, 1)
    assert sizes == tuple(size for size in SIZES if size >= 4 and size not in (96, 128))


def test_where_results_depend_on_a_rows_place_rows_are_multiplied_one_by_one() -> None:
    def make(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
        product = OneDnnProduct(weight, bias)
        return lambda x: product(x) + torch.arange(len(x))[:, None]

    assert invariant_sizes(make, 64, 512, torch.float32, False, 1) == (1,)
    x = torch.randn(5, 512)
    product = InvariantProduct(make(torch.eye(512), None), (1,))
    torch.testing.assert_close(product(x), x)


# The other operations

SIZES_OF_ROWS = [(64, 1), (96, 3), (1000, 17)]


@pytest.mark.parametrize("size, rows", SIZES_OF_ROWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_and_activations_of_a_row_are_the_same_beside_any_others(
    dtype: torch.dtype, size: int, rows: int
) -> None:
    x, residual = torch.randn(200, size).to(dtype), torch.randn(200, size).to(dtype)
    weight = torch.randn(size).to(dtype)
    begin = 90

    def part(operate: object, *tensors: torch.Tensor) -> torch.Tensor:
        assert callable(operate)
        result: torch.Tensor = operate(*(t.clone() for t in tensors))
        return result

    for operate, tensors in (
        (lambda a: rms_norm(a, weight, 1e-6), (x,)),
        (lambda a, b: add_rms_norm(a, b, weight, 1e-6), (x, residual)),
        (silu_and_mul, (x,)),
    ):
        whole = part(operate, *tensors)
        some = part(operate, *(t[begin : begin + rows].contiguous() for t in tensors))
        assert torch.equal(some, whole[begin : begin + rows])
