"""The script for the first minutes on a GPU, without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "bench" / "gpu_first_minutes.py"


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *options]
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = run("--output", str(tmp_path / "result"))
    assert done.returncode == 2
    assert done.stderr.startswith("no CUDA device: ")
    assert not list(tmp_path.iterdir())


def test_a_dry_run_writes_the_result_of_each_part(tmp_path: Path) -> None:
    done = run("--dry-run", "--parts", "environment,variants,branches", "--output", f"{tmp_path}/result")
    results = json.loads((tmp_path / "result.json").read_text())
    assert done.returncode == 0, results
    assert [result["status"] for result in results] == ["passed"] * 3
    page = (tmp_path / "result.md").read_text()
    assert "2 of 2 cases compiled for sm_90" in page


def test_the_other_parts_run_after_one_that_takes_too_long(tmp_path: Path) -> None:
    done = run(
        "--dry-run", "--parts", "environment,captures", "--limit", "0.01", "--output", f"{tmp_path}/result"
    )
    results = json.loads((tmp_path / "result.json").read_text())
    assert done.returncode == 1
    assert [result["status"] for result in results] == ["stopped after 0 s"] * 2
