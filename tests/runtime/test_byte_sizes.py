"""Sizes in messages have a unit that options take too."""

from __future__ import annotations

import pytest
from arbora.runtime.byte_sizes import as_given, in_units
from arbora.runtime.option_values import read_size


@pytest.mark.parametrize(
    ("size", "down", "up"),
    [
        (0, "0B", "0B"),
        (1000, "1,000B", "1,000B"),
        (1 << 20, "1MiB", "1MiB"),
        (3 << 29, "1.5GiB", "1.5GiB"),
        (500 << 30, "500GiB", "500GiB"),
        ((1 << 20) + 1, "1MiB", "1.1MiB"),
        (8_000_001, "7.6MiB", "7.7MiB"),
    ],
)
def test_a_size_is_rounded_to_a_tenth_of_its_unit(size: int, down: str, up: str) -> None:
    assert (in_units(size), in_units(size, up=True)) == (down, up)


def test_a_needed_size_is_enough_when_it_is_given_as_an_option() -> None:
    for size in (5000, 8_000_001, (1 << 30) + 1):
        assert read_size(in_units(size, up=True)) >= size >= read_size(in_units(size))


@pytest.mark.parametrize("text", ["10TB", "4GiB", "500MB", "1.5GiB", "1.5GB", "2,000TiB", "512KiB", "1B"])
def test_an_option_is_echoed_as_it_was_written(text: str) -> None:
    assert as_given(read_size(text.replace(",", ""))) == text


def test_an_option_that_is_no_multiple_of_a_unit_is_echoed_rounded() -> None:
    assert as_given((1 << 30) + 12_345_678) == in_units((1 << 30) + 12_345_678)
