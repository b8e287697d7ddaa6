"""Every Triton kernel builds for the supported GPUs, within their shared memory and without register spills.

Needs no GPU. The compiler runs in its own process, as this one may have Triton in interpreter mode.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aot_attention import PAGE_SIZES, STORED, VALUES, WINDOWS, attention_case, covering, variants
from aot_cases import AotCase, all_cases, programs_at_a_time

SUPPORT = Path(__file__).parents[1] / "support"
CASES = all_cases()
JOBS = [(case, architecture) for case in CASES for architecture in case.architectures]
Compiler = Callable[[AotCase, int], dict[str, Any]]


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_DEFAULT_FP_FUSION": "1", "PYTHONSAFEPATH": "1", "PYTHONPATH": str(SUPPORT)}
    command = [sys.executable, str(SUPPORT / "aot_compile.py")]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        to, answers = process.stdin, process.stdout
        assert to is not None and answers is not None

        def compiled(case: AotCase, architecture: int) -> dict[str, Any]:
            to.write(json.dumps([case.name, architecture]) + "\n")
            to.flush()
            result: dict[str, Any] = json.loads(answers.readline())
            return result

        yield compiled
        to.close()


@pytest.mark.parametrize(("case", "architecture"), JOBS, ids=lambda value: getattr(value, "name", value))
def test_a_kernel_builds_within_shared_memory_and_without_spilling(
    case: AotCase, architecture: int, compiler: Compiler
) -> None:
    result = compiler(case, architecture)
    assert "error" not in result, result
    limit = case.max_shared if isinstance(case.max_shared, int) else case.max_shared[architecture]
    assert result["shared"] <= limit
    assert result["pipelined"] >= case.pipelined_loops
    assert result["spilled"] <= case.max_spill_bytes
    assert result["loop_spills"] <= case.max_loop_spills
    if case.products is not None:
        assert result["products"] == case.products.number, result
    together = programs_at_a_time(case.num_warps, result["registers"], result["shared"], architecture)
    assert together >= case.programs, result


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({(case.name, architecture) for case, architecture in JOBS}) == len(JOBS)


def test_the_compiled_attention_kernels_have_every_pair_of_properties() -> None:
    every = [*VALUES, PAGE_SIZES, STORED, WINDOWS]
    chosen = covering()
    for first in range(len(every)):
        for second in range(first):
            pairs = {(variant[first], variant[second]) for variant in chosen}
            assert len(pairs) == len(every[first]) * len(every[second])
    assert len(chosen) < 30 < len({attention_case(variant).name for variant in variants()})
