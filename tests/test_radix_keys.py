from __future__ import annotations

from bisect import bisect_left, insort
from random import Random

import pytest
from arbora.radix_cache.sorted_keys import SortedKeys


def key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def neighbours(model: list[bytes], asked: bytes) -> tuple[bytes | None, bytes | None]:
    index = bisect_left(model, asked)
    return model[index - 1] if index else None, model[index] if index < len(model) else None


@pytest.mark.parametrize("seed", range(3))
def test_keys_stay_sorted_and_find_their_neighbours_as_they_come_and_go(seed: int) -> None:
    random = Random(seed)
    keys = SortedKeys()
    model: list[bytes] = []
    for goal in (2_500, 0, 1_500, 700, 1_200, 0):
        while len(model) != goal:
            if len(model) < goal:
                fresh = key(random.randrange(1 << 32))
                assert keys.add(fresh) == neighbours(model, fresh)[0]
                insort(model, fresh)
            else:
                keys.remove(model.pop(random.randrange(len(model))))
        assert list(keys) == model
        for asked in [
            *random.choices(model or [b""], k=50),
            *(key(random.randrange(1 << 32)) for _ in range(50)),
        ]:
            assert keys.around(asked) == neighbours(model, asked)


def test_nothing_is_around_a_key_where_there_are_none() -> None:
    assert SortedKeys().around(b"key") == (None, None)
