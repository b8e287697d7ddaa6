"""A progress bar on the terminal or in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(
    total: int, shown: bool, *, unit: str = "prompt", leave: bool = True
) -> Iterator[Callable[[], object]]:
    """Yields a function that counts one of `total` units as done. Without `shown` there is no bar.

    leave: whether the bar stays after the last unit
    """
    if not shown:
        yield lambda: None
        return
    from tqdm.auto import tqdm  # imports slowly

    with tqdm(total=total, unit=unit, leave=leave, dynamic_ncols=True) as bar:
        yield bar.update
