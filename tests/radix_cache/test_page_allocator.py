from __future__ import annotations

from itertools import pairwise

import pytest
from arbora.radix_cache.page_allocator import PageAllocator
from hypothesis import given
from hypothesis import strategies as st


def all_taken(num_pages: int, but: list[int]) -> PageAllocator:
    allocator = PageAllocator(num_pages)
    allocator.take(num_pages)
    allocator.free(but)
    return allocator


def test_pages_of_one_request_are_consecutive() -> None:
    allocator = PageAllocator(10)
    assert allocator.take(4) == [0, 1, 2, 3]
    assert allocator.take(3) == [4, 5, 6]


def test_the_smallest_run_that_fits_is_taken() -> None:
    allocator = all_taken(20, but=[0, 1, 2, 3, 4, 6, 7, 8, 10])
    assert allocator.take(2) == [6, 7]


def test_a_request_longer_than_any_run_takes_the_longest_runs_first() -> None:
    allocator = all_taken(20, but=[0, 5, 6, 10, 11, 12])
    assert allocator.take(5) == [10, 11, 12, 5, 6]


def test_the_pages_after_a_given_page_are_preferred() -> None:
    allocator = all_taken(20, but=[3, 4, 5, 10])
    assert allocator.take(2, after=2) == [3, 4]
    assert allocator.take(2, after=4) == [5, 10]


def test_a_page_whose_successor_is_taken_gives_no_preference() -> None:
    allocator = all_taken(20, but=[3, 4, 5, 10])
    assert allocator.take(1, after=7) == [10]
    assert allocator.take(1, after=3) == [3]


def test_runs_are_merged_when_the_page_between_them_is_freed() -> None:
    allocator = all_taken(9, but=[3, 5])
    allocator.free([4])
    assert allocator.free_runs() == [(3, 6)]


def test_an_allocator_without_pages_has_none_free() -> None:
    allocator = PageAllocator(0)
    assert allocator.num_free == 0
    assert allocator.take(0) == []


def test_asking_for_more_than_is_free_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError, match="3 pages, 2 are free"):
        PageAllocator(2).take(3)


@given(st.integers(1, 30), st.data())
def test_free_runs_are_the_free_pages(num_pages: int, data: st.DataObject) -> None:
    allocator = PageAllocator(num_pages)
    taken: set[int] = set()
    for _ in range(data.draw(st.integers(0, 12))):
        if data.draw(st.booleans()):
            after = data.draw(st.none() | st.integers(0, num_pages))
            fresh = allocator.take(data.draw(st.integers(0, allocator.num_free)), after)
            assert taken.isdisjoint(fresh)
            assert len(set(fresh)) == len(fresh)
            taken.update(fresh)
        elif taken:
            back = data.draw(st.lists(st.sampled_from(sorted(taken)), unique=True))
            allocator.free(back)
            taken.difference_update(back)
        runs = allocator.free_runs()
        free = {page for start, end in runs for page in range(start, end)}
        assert free == set(range(num_pages)) - taken
        assert allocator.num_free == len(free)
        assert all(left[1] < right[0] for left, right in pairwise(runs))
