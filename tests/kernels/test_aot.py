"""Every Triton kernel builds for the supported GPUs, within their shared memory and without register spills.

Needs no GPU. The compiler runs in its own process, as this one may have Triton in interpreter mode.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from aot_cases import AotCase, all_cases

SUPPORT = Path(__file__).parents[1] / "support"
CASES = all_cases()


@cache
def compiled() -> dict[str, dict[str, int | str]]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_DEFAULT_FP_FUSION": "1", "PYTHONSAFEPATH": "1", "PYTHONPATH": str(SUPPORT)}
    command = [sys.executable, str(SUPPORT / "aot_compile.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results: dict[str, dict[str, int | str]] = json.loads(done.stdout)
    return results


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_kernel_builds_within_shared_memory_and_without_spilling(case: AotCase, architecture: int) -> None:
    result = compiled()[f"{case.name}-sm{architecture}"]
    assert "error" not in result, result
    limit = case.max_shared if isinstance(case.max_shared, int) else case.max_shared[architecture]
    assert int(result["shared"]) <= limit
    assert int(result["pipelined"]) >= case.pipelined_loops
    assert int(result["spilled"]) <= case.max_spill_bytes
    assert int(result["loop_spills"]) <= case.max_loop_spills


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
