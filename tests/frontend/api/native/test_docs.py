"""docs/native.md lists the fields as the code has them."""

from __future__ import annotations

import re
from pathlib import Path

from arbora.frontend.api.native.fields import INERT
from arbora.frontend.api.native.protocol import GenerateRequest

PAGE = (Path(__file__).parents[4] / "docs" / "native.md").read_text()


def rows(*titles: str) -> set[str]:
    """The names in code in rows of the table of fields."""
    lines = [line for line in PAGE.splitlines() for title in titles if line.startswith(f"| {title} |")]
    assert len(lines) == len(titles)
    return {name for line in lines for code in re.findall("`([^`]*)`", line) for name in code.split()}


def test_all_fields_are_listed() -> None:
    served = rows(
        "the prompt, exactly one", "its form", "the reply", "sampling", "constraints", "cache, order"
    )
    assert served == set(GenerateRequest.__struct_fields__)
    assert rows("refused unless empty") == set(INERT.fixed)
