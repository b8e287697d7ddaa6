"""Writes numbers of bytes in messages in the form in which options take them."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def in_units(size: int, *, up: bool = False) -> str:
    """`size` bytes to a tenth of the largest unit that fits, such as 1.5GiB: rounded down, or up if `up`."""
    power = max(0, min((size.bit_length() - 1) // 10, len(_UNITS) - 1))
    unit = 1 << 10 * power
    tenths = -(-size * 10 // unit) if up else size * 10 // unit
    whole, tenth = divmod(tenths, 10)
    return f"{whole:,}{f'.{tenth}' if tenth else ''}{_UNITS[power]}"
