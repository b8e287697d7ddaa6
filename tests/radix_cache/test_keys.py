from __future__ import annotations

from bisect import bisect_left, insort
from random import Random

import pytest
from arbora.radix_cache.packed import SortedKeys

TOKENS = 3


def key(number: int) -> bytes:
    """The key of a number; every third key begins with the same token."""
    return (number % TOKENS).to_bytes(4, "big") + number.to_bytes(4, "big")


def neighbours(model: list[bytes], asked: bytes) -> tuple[bytes | None, bytes | None]:
    index = bisect_left(model, asked)
    below = model[index - 1] if index and model[index - 1][:4] == asked[:4] else None
    above = model[index] if index < len(model) and model[index][:4] == asked[:4] else None
    return below, above


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("in_order", [False, True])
def test_keys_stay_sorted_and_find_their_neighbours_as_they_come_and_go(seed: int, in_order: bool) -> None:
    random = Random(seed)
    members: dict[bytes, None] = {}
    keys = SortedKeys(members)
    model: list[bytes] = []
    for goal in (2_500, 0, 1_500, 700, 1_200, 0):
        while len(model) != goal:
            if len(model) < goal:
                fresh = key(random.randrange(5_000))
                if fresh in members:
                    continue
                members[fresh] = None
                assert keys.add(fresh) == neighbours(model, fresh)[0]
                insort(model, fresh)
            else:
                del members[model.pop(0 if in_order else random.randrange(len(model)))]
                keys.count_removed()
        assert list(keys) == model
        strangers = [key(random.randrange(5_000)) for _ in range(50)]
        for asked in [*random.choices(model or [b""], k=50), *strangers]:
            assert keys.find_around(asked) == neighbours(model, asked)


def test_nothing_is_around_a_key_where_there_are_none() -> None:
    assert SortedKeys({}).find_around(b"key") == (None, None)
