"""Each example of docs/examples runs on the built-in model and prints its results."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import arbora
import pytest
from arbora.runtime.config import BUILTIN_MODEL
from served import PATIENCE, Served, serve

EXAMPLES = Path(arbora.__file__).parent / "docs" / "examples"
OPTIONS = {  # and a line that the output must contain
    "agent": ("--rounds 1", r"tool: '\{"),
    "extraction": (
        "--documents 10",
        r"  Invoice\(customer='.*', total=-?\d+, status='(paid|open|overdue)'\)",
    ),
    "judge": ("", r"^(poor|fair|good) by \d+\.\d\d: Bicycles .*'aim': '(poor|fair|good)'"),
    "pipeline": ("", r"^Answer\(subject='.*', text='.*'\)"),
    "questions": ("--words 100 --questions 4", r"^tiers: memory\? '"),
    "self_consistency": ("--chains 4", r"^[1-9]\d*: [1-4] of 4 votes"),
    "tree_of_thought": ("--width 2 --depth 2", r"^2\. '"),
}


@pytest.fixture(scope="module")
def builtin() -> Iterator[Served]:
    with serve(BUILTIN_MODEL, "--kv-memory", "256MiB") as server:
        yield server


def test_the_readme_lists_every_example() -> None:
    listed = re.findall(r"^\| `(\w+)\.py`", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    files = {path.stem for path in EXAMPLES.glob("*.py")} - {"example_options"}
    assert set(listed) == files == OPTIONS.keys()


@pytest.mark.parametrize("name", OPTIONS)
def test_an_example_prints_its_results_and_its_cached_share(builtin: Served, name: str) -> None:
    flags, expected = OPTIONS[name]
    program = str(EXAMPLES / f"{name}.py")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    ran = subprocess.run(
        [sys.executable, program, "--url", builtin.url, *flags.split()],
        capture_output=True,
        text=True,
        env=environment,
        timeout=5 * PATIENCE,  # the first grammar may wait until its kernels are compiled
    )
    assert ran.returncode == 0, ran.stderr
    assert re.search(expected, ran.stdout, re.MULTILINE), ran.stdout
    assert re.search(r"^\d+ calls, \d+ prompt tokens, \d+% of them cached", ran.stdout, re.MULTILINE)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 80
