"""Every script of bench/ starts as its docstring says, even if its folder is not on Python's path."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import scripts_in_forks

BENCH = Path(__file__).parents[2] / "bench"
SCRIPTS = sorted(path.name for path in BENCH.glob("*.py") if "__main__" in path.read_text())
Ends = dict[str, tuple[int, str, str]]


@pytest.fixture(scope="module")
def ends() -> Ends:
    """The status, stdout and stderr of each script's --help."""
    command = [sys.executable, scripts_in_forks.__file__, *(str(BENCH / script) for script in SCRIPTS)]
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return {Path(script).name: tuple(end) for script, end in json.loads(done.stdout).items()}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_starts_and_says_what_it_does(script: str, ends: Ends) -> None:
    status, said, errors = ends[script]
    assert status == 0, errors
    assert said.startswith(f"usage: {script}")
