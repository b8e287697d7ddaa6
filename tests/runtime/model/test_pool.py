"""The number of pages, and the places of a slot's tokens in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import arbora
import numpy as np
import pytest
import torch
from arbora.kernels.common.step_tokens import NO_SLOT
from arbora.radix_cache import Reach, WindowGroup
from arbora.runtime.errors import ConfigError
from arbora.runtime.messages import Row
from arbora.runtime.model.decoder_config import load_decoder_config
from arbora.runtime.model.interface.cache_spec import ALL_LAYERS, CacheSpec
from arbora.runtime.model.kv_pool import (
    HUGE_PAGE_BYTES,
    SEGMENT_TOKENS,
    PoolLayout,
    PoolSize,
    allocate_pool,
    page_bytes,
    segment_pages,
    size_pool,
)
from arbora.runtime.model.page_tables import PageTables
from hypothesis import given
from hypothesis import strategies as st

LARGE, SMALL = st.integers(1, 5000), st.integers(1, 256)


def pool(budget: int, *, slots: int = 4, context: int = 100, asked: bool = True) -> PoolSize:
    return size_pool(
        budget=budget,
        layout=PoolLayout(ALL_LAYERS, (1000,), 16, context),
        slots=slots,
        context_was_asked=asked,
    )


def test_the_budget_decides_the_number_of_pages() -> None:
    assert pool(20_500) == PoolSize((20,), 100)


def test_there_are_never_more_pages_than_the_slots_can_use() -> None:
    assert pool(10**9) == PoolSize((4 * 7,), 100)


def test_a_default_context_is_limited_by_the_memory() -> None:
    assert pool(3_000, asked=False) == PoolSize((3,), 48)


def test_a_context_asked_for_is_never_cut() -> None:
    with pytest.raises(ConfigError) as caught:
        pool(3_000)
    for words in ("--kv-memory 3kB holds 48 tokens", "--max-model-len is 100", "needs 6.9KiB"):
        assert words in str(caught.value)


def test_memory_for_less_than_a_page_is_refused() -> None:
    with pytest.raises(ConfigError, match="--kv-memory"):
        pool(999, asked=False)


def test_a_segment_of_a_layer_fills_a_huge_page() -> None:
    page = 2 * 8 * 16 * 128 * 2  # 8 KV heads of 128 in bfloat16
    assert segment_pages(page, 16, 3200) == 32
    assert 32 * page == HUGE_PAGE_BYTES


def test_a_segment_has_many_tokens_even_if_they_are_large() -> None:
    assert segment_pages(2 * 64 * 16 * 256 * 4, 16, 1600) * 16 == 256


@given(
    pages=st.integers(1, 5000),
    page_bytes=st.integers(1000, HUGE_PAGE_BYTES),
    page_size=st.sampled_from([1, 16, 64]),
)
def test_segments_have_little_room_for_more_pages(pages: int, page_bytes: int, page_size: int) -> None:
    of_segment = segment_pages(page_bytes, page_size, pages)
    smallest = max(-(-HUGE_PAGE_BYTES // page_bytes), -(-SEGMENT_TOKENS // page_size))
    assert min(pages, smallest) <= of_segment < max(2 * smallest, pages + 1)
    assert -pages % of_segment <= min(-pages % smallest, max(2, 0.1 * pages))


def test_the_cache_of_a_layer_is_stored_in_segments() -> None:
    built_in = load_decoder_config(Path(arbora.__file__).parent / "runtime" / "model" / "builtin")
    spec = replace(built_in.cache_spec, kv_heads=16)
    kvs = allocate_pool(spec, [1024] * spec.layers, 16, torch.bfloat16, torch.device("cpu"))
    _, heads, segments, tokens, cell = kvs[0].shape
    assert (len(kvs), heads, cell) == (spec.layers, 16, spec.head_dim)
    assert (segments, tokens) == (32, 512)


@pytest.mark.parametrize(
    ("layers", "window", "context", "times_fewer"), [(18, 512, 8192, 3.4), (6, 1024, 32768, 3.6)]
)
def test_layers_with_windows_take_few_bytes_for_the_same_number_of_tokens(
    layers: int, window: int, context: int, times_fewer: float
) -> None:
    windows = tuple(None if layer % 6 == 5 else window for layer in range(layers))
    layout = PoolLayout.of(CacheSpec(4, 1, 256, windows), 16, torch.bfloat16, context)
    for requests in (1, 8):
        pages = requests * context // 16
        assert pages * page_bytes(
            CacheSpec(4, 1, 256, windows), 16, torch.bfloat16
        ) >= times_fewer * layout.bytes(pages)


@given(
    window=st.integers(1, 9000),
    context=st.integers(100, 20_000),
    page_size=st.sampled_from([1, 16, 256]),
    requests=st.integers(1, 8),
)
def test_a_windowed_group_has_pages_for_one_request_of_any_length(
    window: int, context: int, page_size: int, requests: int
) -> None:
    layout = PoolLayout.of(CacheSpec(1, 1, 8, (None, window)), page_size, torch.float32, context)
    full = requests * -(-context // page_size)
    for group, pages in zip(layout.groups[1:], layout.count_pages(full)[1:], strict=True):
        assert group.reach is not None
        assert WindowGroup(Reach(group.reach), 0, page_size).max_held(context) <= pages <= full


def test_a_few_pages_are_one_segment() -> None:
    assert segment_pages(1000, 16, 9) == 9


@given(budget=st.integers(0, 10**6), slots=SMALL, context=LARGE, page_size=SMALL, bytes_per_page=LARGE)
def test_a_pool_holds_one_context_within_its_budget(
    budget: int, slots: int, context: int, page_size: int, bytes_per_page: int
) -> None:
    try:
        (num_pages,), length, _ = size_pool(
            budget=budget,
            layout=PoolLayout(ALL_LAYERS, (bytes_per_page,), page_size, context),
            slots=slots,
            context_was_asked=False,
        )
    except ConfigError:
        assert budget < bytes_per_page
    else:
        assert num_pages * bytes_per_page <= budget
        assert 1 <= length <= context
        assert num_pages * page_size >= length


def test_tokens_are_in_their_slots_pages_in_order() -> None:
    tables = PageTables(slots=3, max_model_len=20, page_size=4)
    tables.append(2, np.array([9, 5], np.int32))
    tables.append(0, np.array([1], np.int32))
    tables.append(2, np.array([7], np.int32))
    tables.extend(np.array([0]), np.array([0]), np.array([2]))
    tokens = tables.extend(np.array([2, 0]), np.array([2, 0]), np.array([3, 0]))
    assert tokens.places.tolist() == [38, 39, 20, 6]
    assert tokens.positions.tolist() == [2, 3, 4, 2]
    assert tokens.slots.tolist() == [NO_SLOT, NO_SLOT, NO_SLOT, 0]
    assert (tokens.lengths.tolist(), tokens.ends.tolist()) == ([3, 1], [3, 4])
    assert tables.table(2).tolist() == [9, 5, 7]


def test_a_row_without_given_tokens_starts_at_its_slots_length() -> None:
    tables = PageTables(slots=2, max_model_len=20, page_size=4)
    tables.append(1, np.array([9, 5], np.int32))
    slot, nothing = np.array([1]), np.array([0])
    tables.extend(slot, np.array([1]), np.array([3]))
    assert tables.find_written(Row(1)).tolist() == [5]
    assert [tables.extend(slot, nothing, nothing).positions.tolist() for _ in range(2)] == [[4], [5]]
    assert tables.extend(slot, np.array([3]), np.array([1])).positions.tolist() == [3]
    assert tables.extend(slot, nothing, nothing).positions.tolist() == [4]


def test_a_token_without_a_page_is_an_error() -> None:
    tables = PageTables(slots=1, max_model_len=20, page_size=4)
    tables.append(0, np.array([3], np.int32))
    with pytest.raises(AssertionError, match="a token has no page"):
        tables.extend(np.array([0]), np.array([2]), np.array([3]))


def test_a_cleared_table_starts_anew() -> None:
    tables = PageTables(slots=1, max_model_len=8, page_size=4)
    tables.append(0, np.array([3, 4], np.int32))
    tables.clear(0)
    tables.append(0, np.array([6], np.int32))
    assert tables.table(0).tolist() == [6]


def test_a_copy_of_the_tables_gets_new_pages_with_the_next_write() -> None:
    tables = PageTables(slots=3, max_model_len=20, page_size=4)
    tables.on_device, tables._is_copy = tables.on_device.clone(), True
    tables.append(2, np.array([9, 5], np.int32))
    tables.append(0, np.array([1], np.int32))
    assert tables.on_device.sum() == 0
    tables.write(*map(torch.from_numpy, tables.take_new()))
    tables.append(2, np.array([7], np.int32))
    tables.write(*map(torch.from_numpy, tables.take_new()))
    tables.write(*map(torch.from_numpy, tables.take_new()))
    starts = tables.starts(np.arange(3)).tolist()
    assert tables.on_device[starts[2] : starts[2] + 3].tolist() == [9, 5, 7]
    assert tables.on_device[starts[0]] == 1
