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


@pytest.mark.parametrize("script", ["serve.py", "grammar_cost.py"])
def test_a_load_generator_says_which_package_it_lacks(script: str, tmp_path: Path) -> None:
    (tmp_path / "httpx.py").write_text("raise ImportError")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(BENCH / script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "httpx" in done.stderr and "Traceback" not in done.stderr
