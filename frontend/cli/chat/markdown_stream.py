"""Shows a growing Markdown text on the terminal.

A block that is complete is printed once and for all; only the last block is drawn again as it grows. So a
long reply stays in the terminal's scroll-back, and drawing costs no more as it gets longer.
"""

from __future__ import annotations

import re
import time

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import SegmentLines
from rich.text import Text

from ..output import without_controls

REDRAW_S = 0.08
_FENCE = re.compile(r"^ {0,3}(```|~~~)", re.MULTILINE)


def complete_blocks(text: str) -> int:
    """The length of the beginning of `text` that has only whole blocks: up to the last empty line that is
    outside of a fenced code block."""
    end = 0
    for gap in re.finditer(r"\n[ \t]*\n", text):
        if len(_FENCE.findall(text[: gap.start()])) % 2 == 0:
            end = gap.end()
    return end


class MarkdownStream:
    """A context in which `add` takes the pieces of a reply: reasoning first, which is dimmed.

    With `is_markdown` false, for JSON, the text is shown as it is, and each line is a block.
    """

    def __init__(self, console: Console, *, is_markdown: bool = True) -> None:
        self._console = console
        self._is_markdown = is_markdown
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._reasoning = self._text = ""
        self._drawn_at = 0.0

    def __enter__(self) -> MarkdownStream:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.update("")
        self._live.stop()
        self._print_reasoning()
        if self._text.strip():
            self._print(self._text)

    def add(self, reasoning: str, text: str) -> None:
        self._reasoning += without_controls(reasoning)
        self._text += without_controls(text)
        if text.strip():
            self._print_reasoning()
        end = complete_blocks(self._text) if self._is_markdown else self._text.rfind("\n") + 1
        if self._text[:end].strip():
            self._live.update("", refresh=True)
            self._print(self._text[:end])
            if self._is_markdown:
                self._console.print()
            self._text = self._text[end:]
        if time.monotonic() - self._drawn_at > REDRAW_S:
            self._live.update(self._end(), refresh=True)
            self._drawn_at = time.monotonic()

    def _end(self) -> RenderableType:
        """The last lines of the last block that fit on the terminal."""
        rows = max(1, self._console.height - 2)
        shown = (self._text or self._reasoning)[-rows * self._console.width :]
        last = "\n".join(shown.splitlines()[-rows:])
        drawn = self._drawn(last) if self._text else Text(last, "dim")
        return SegmentLines(self._console.render_lines(drawn, pad=False)[-rows:], new_lines=True)

    def _print(self, text: str) -> None:
        """Prints complete blocks. Only the terminal wraps a line of JSON, so that it can be copied."""
        self._console.print(self._drawn(text), soft_wrap=not self._is_markdown)

    def _drawn(self, text: str) -> RenderableType:
        return Markdown(text) if self._is_markdown else Text(text.rstrip("\n"))

    def _print_reasoning(self) -> None:
        if self._reasoning.strip():
            self._live.update("", refresh=True)
            self._live.console.print(Text(self._reasoning.strip() + "\n", "dim"))
        self._reasoning = ""
