"""Several test processes share the work evenly, and tests that share a fixture stay together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from distribution import unit_of

ROOT = Path(__file__).resolve().parents[1]
SHARING = """
import pytest

@pytest.fixture(scope="module")
def shared():
    return 5

@pytest.mark.parametrize("number", range(6))
def test_a(shared, number, record):
    record()

def test_b(shared, record):
    record()
"""
ALONE = """
import time
""" + "".join(f"def test_{number}(record): time.sleep(0.05); record()\n" for number in range(12))
CONFTEST = """
import json, os, pytest, sys
sys.path.insert(0, {support!r})
from distribution import pytest_collection_modifyitems, pytest_xdist_make_scheduler

@pytest.fixture
def record(request):
    def write():
        with open({notes!r}, "a") as file:
            file.write(json.dumps([os.getpid(), request.node.path.name]) + "\\n")
    return write
"""


def test_a_file_with_a_shared_fixture_is_one_unit_and_other_functions_are_units(tmp_path: Path) -> None:
    (tmp_path / "test_sharing.py").write_text(SHARING)
    (tmp_path / "test_alone.py").write_text(ALONE)
    assert unit_of("test_sharing.py::test_a[0]", tmp_path) == "test_sharing.py"
    assert unit_of("test_alone.py::test_1[a::b]", tmp_path) == "test_alone.py::test_1"


@pytest.mark.parametrize("order", ["a", "z"], ids=["collected first", "collected last"])
def test_files_that_share_a_fixture_run_whole_and_first(tmp_path: Path, order: str) -> None:
    notes = tmp_path / "notes"
    support = str(ROOT / "tests" / "support")
    (tmp_path / "conftest.py").write_text(CONFTEST.format(support=support, notes=str(notes)))
    (tmp_path / f"test_{order}_sharing.py").write_text(SHARING)
    (tmp_path / "test_m_alone.py").write_text(ALONE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    options = ["-q", "-p", "xdist", "-n", "2", "--dist", "loadfile"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # importing them takes long
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
    files = defaultdict(list)
    for line in notes.read_text().splitlines():
        process, file = json.loads(line)
        files[process].append(file)
    sharing = f"test_{order}_sharing.py"
    first, second = sorted(files.values(), key=lambda names: sharing not in names)
    assert first[:7] == [sharing] * 7
    assert sharing not in second
    assert set(first[7:] + second) == {"test_m_alone.py"}
