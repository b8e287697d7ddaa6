"""docs/responses.md lists the fields and paths as the code has them."""

from __future__ import annotations

import re
from pathlib import Path

from arbora.frontend.stored.responses import fields
from arbora.frontend.stored.responses.protocol import ResponsesRequest
from arbora.frontend.stored.responses.routes import HANDLERS

PAGE = (Path(__file__).parents[1] / "docs" / "responses.md").read_text()


def row(title: str) -> set[str]:
    """The names in code in a row of the table of fields."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {title}")]
    return {name for code in re.findall("`([^`]*)`", line) for name in code.split()}


def test_the_fields_are_all_listed() -> None:
    served = row("served, OpenAI's |") | row("served, as in chats |")
    assert served == set(ResponsesRequest.__struct_fields__)
    assert row("accepted; they change no response |") == set(fields.INERT.without_effect)
    assert row("accepted with one warning in the log |") == set(fields.INERT.hints)
    assert row("refused unless empty |") == set(fields.INERT.fixed)


def test_the_paths_are_all_listed() -> None:
    paths = {path.replace("{id:response_id}", "{id}") for _, path, *_ in HANDLERS}
    assert paths <= set(re.findall(r"(/v1/[^`? ]*)", PAGE))
