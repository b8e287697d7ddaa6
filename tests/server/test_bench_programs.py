"""bench/programs.py measures each workload in each way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from served import PATIENCE, Served

SCRIPT = Path(__file__).parents[2] / "bench" / "programs.py"


def test_every_workload_is_measured_in_every_way(served: Served) -> None:
    sizes = ["--rounds", "1", "--fraction", "0.1", "--documents-words", "20", "--threads", "4"]
    command = [sys.executable, "-P", str(SCRIPT), "--url", served.url, "--other-url", served.url, *sizes]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in ran.stdout.splitlines()[2:]]
    workloads = ["tree", "questions", "judge", "consistency", "extraction", "pipeline", "agent"]
    ways = ["language", "one by one", "pool", "other one by one", "other pool"]
    assert [row[:2] for row in rows] == [[workload, way] for workload in workloads for way in ways]
    for row in rows:
        assert 0 < int(row[5]) <= int(row[4])  # tokens computed, of all prompts
        assert row[1] != "language" or row[3].startswith("1.00")
