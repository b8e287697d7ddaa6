"""What the commands share: values of options, JSON lines for programs, tables for people."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ...runtime.errors import ConfigError
from ...runtime.option_values import show

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

JSON_HELP = "print JSON instead of text"
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class ReadValue(argparse.Action):
    """Stores the value that `read` makes of the text. Raises ConfigError if `read` raises ValueError."""

    def __init__(self, *, read: Callable[[str], object], **settings: Any) -> None:
        super().__init__(**settings)
        self._read = read

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option_string: str | None = None
    ) -> None:
        text = str(values)
        try:
            setattr(namespace, self.dest, self._read(text))
        except ValueError as error:
            raise ConfigError(f"{option_string} {show(text)}: {error}") from None


def print_json(value: object) -> None:
    """Writes one line of JSON to standard output.

    If standard output is a pipe whose reader has closed it, as `head` does, the program exits with code 1.
    """
    try:
        print(msgspec.json.encode(value, enc_hook=str).decode(), flush=True)
    except BrokenPipeError:
        drop_output()
        raise SystemExit(1) from None


def without_controls(text: str) -> str:
    """The text without control characters other than tabs and line feeds.

    With them a reply could set the clipboard, clear the screen or have the terminal type an answer.
    """
    return _CONTROLS.sub("", text)


def is_terminal() -> bool:
    """Whether both standard input and standard output are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def console() -> Console:
    """The terminal, or a file that gets text without colours and without line breaks of its own."""
    from rich.console import Console  # imports slowly

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table. The first column has texts, the others numbers. If all heads are empty, there is no header."""
    from rich import box
    from rich.table import Table

    made = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        title_style="bold",
        show_header=any(heads),
    )
    for position, head in enumerate(heads):
        made.add_column(head, justify="right" if position else "left", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    return made


def print_columns(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints rows below their heads. No text is shortened: a terminal wraps long lines."""
    lines = [heads, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(line, widths, strict=True)
        print("  ".join(without_controls(text).ljust(width) for text, width in cells).rstrip())


def drop_output() -> None:
    """Discards the rest of standard output. Otherwise Python's flush at exit would fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
