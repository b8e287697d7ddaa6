"""A progress bar on the terminal or in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(total: int, shown: bool) -> Iterator[Callable[[], object]]:
    """Yields a function that counts one of `total` prompts as done. Without `shown` there is no bar."""
    if not shown:
        yield lambda: None
        return
    from tqdm.auto import tqdm  # loads slowly

    with tqdm(total=total, unit="prompt", dynamic_ncols=True) as bar:
        yield bar.update
