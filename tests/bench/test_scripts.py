"""Every script of bench/ starts as its docstring says, even if its folder is not on Python's path."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
SCRIPTS = sorted(path.name for path in BENCH.glob("*.py") if "__main__" in path.read_text())


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_starts_and_says_what_it_does(script: str) -> None:
    command = [sys.executable, str(BENCH / script), "--help"]
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {script}")
