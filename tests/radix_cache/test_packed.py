from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import pytest
from arbora.radix_cache import common_tokens
from arbora.radix_cache.packed import common_bytes
from hypothesis import given
from hypothesis import strategies as st
from prefix_world import pack


def shared(left: Sequence[int], right: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 700])
def test_common_bytes_end_where_two_sequences_differ(length: int) -> None:
    base = (bytes(range(256)) * 3)[:length]
    assert common_bytes(base, base) == length
    assert common_bytes(base, base + b"more") == length
    for position in range(length):
        other = bytearray(base)
        other[position] ^= 1 << position % 8
        assert common_bytes(base, bytes(other)) == position
        assert common_bytes(base, base[:position]) == position


@given(st.lists(st.integers(-3, 3)), st.lists(st.integers(-3, 3)))
def test_common_tokens_are_whole_tokens(left: list[int], right: list[int]) -> None:
    assert common_tokens(pack(left), pack(right)) == shared(left, right)


def test_tokens_that_share_their_low_bytes_are_different() -> None:
    assert common_tokens(pack([1, 0x00020304]), pack([1, 0x01020304])) == 1
