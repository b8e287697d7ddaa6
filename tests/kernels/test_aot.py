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
from aot_attention import PROPERTIES, attention_case, covered_pairs, covering, pairs, variants
from aot_cases import AotCase, all_cases, all_jobs, depends_on_architecture, faults, some_jobs

SUPPORT = Path(__file__).parents[1] / "support"
JOBS = some_jobs()
Compiler = Callable[[AotCase, int], dict[str, Any]]


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    paths = [str(SUPPORT), *filter(None, [environment.get("PYTHONPATH")])]
    environment |= {
        "TRITON_DEFAULT_FP_FUSION": "1",
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }
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
    assert not faults(case, architecture, compiler(case, architecture))


def test_every_case_has_a_name_of_its_own() -> None:
    names = [(case.name, architecture) for case, architecture in all_jobs()]
    assert len(set(names)) == len(names)


def instructions(jobs: list[tuple[AotCase, int]]) -> set[tuple[str, int, str]]:
    """The kernels that depend on the architecture, each with its architectures and opcodes for matrices."""
    return {
        (case.kernel, architecture, products.opcode if (products := case.products_on(architecture)) else "")
        for case, architecture in jobs
        if depends_on_architecture(case)
    }


def test_each_kernel_is_compiled_with_all_instructions_of_every_architecture() -> None:
    assert instructions(JOBS) == instructions(all_jobs())
    assert {case.kernel for case, _ in JOBS} == {case.kernel for case in all_cases()}


def test_the_compiled_attention_kernels_cover_what_decides_their_code() -> None:
    chosen = covering()
    assert covered_pairs() <= set().union(*map(pairs, chosen))
    for place, values in enumerate(PROPERTIES):
        assert {variant[place] for variant in chosen} == set(values)
    assert len(chosen) < 24 < len({attention_case(variant).name for variant in variants()})
