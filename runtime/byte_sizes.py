"""Writes numbers of bytes in messages in the form in which options take them."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


_DECIMAL = ("kB", "MB", "GB", "TB", "PB", "EB")


def as_given(size: int) -> str:
    """Writes a size as the user may have written it: in the largest binary or decimal unit that gives at most
    one decimal, otherwise as `in_units` does."""
    units = [(1 << 10 * power, unit) for power, unit in enumerate(_UNITS) if power]
    units += [(1000**power, unit) for power, unit in enumerate(_DECIMAL, start=1)]
    exact = [(each, unit) for each, unit in units if each <= size < 10_000 * each and size * 10 % each == 0]
    if not exact:
        return in_units(size)
    each, unit = max(exact)
    return f"{size / each:,.1f}".removesuffix(".0") + unit


def in_units(size: int, *, up: bool = False) -> str:
    """Writes a size in tenths of the largest unit that fits, such as 1.5GiB: rounded down, or up if `up`."""
    power = max(0, min((size.bit_length() - 1) // 10, len(_UNITS) - 1))
    unit = 1 << 10 * power
    tenths = -(-size * 10 // unit) if up else size * 10 // unit
    whole, tenth = divmod(tenths, 10)
    return f"{whole:,}{f'.{tenth}' if tenth else ''}{_UNITS[power]}"
