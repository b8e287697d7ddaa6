"""Compile all ahead-of-time cases, in a process without the Triton interpreter; print results as JSON."""

import importlib
import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import triton
from aot_cases import AotCase, all_cases
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

TARGETS = (80, 90, 100)


def main() -> None:
    wanted = set(sys.argv[1:])
    cases = [case for case in all_cases() if not wanted or case.name in wanted]
    jobs = {f"{case.name}-sm{target}": (case, target) for case in cases for target in TARGETS}
    with ProcessPoolExecutor() as processes:
        results = processes.map(_compile, *zip(*jobs.values(), strict=True))
        json.dump(dict(zip(jobs, results, strict=True)), sys.stdout)


def _compile(case: AotCase, architecture: int) -> dict[str, int | str]:
    try:
        return _measure(case, architecture)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _measure(case: AotCase, architecture: int) -> dict[str, int | str]:
    module, name = case.kernel.split(":")
    kernel = getattr(importlib.import_module(f"arbora.kernels.{module}"), name)
    aligned = {*case.aligned, *(key for key, kind in case.signature.items() if kind.startswith("*"))}
    kinds = {key: case.signature.get(key, "constexpr") for key in kernel.arg_names}
    source = ASTSource(
        kernel,
        signature=kinds,
        constexprs={(kernel.arg_names.index(key),): value for key, value in case.constants.items()},
        attrs={(kernel.arg_names.index(key),): [["tt.divisibility", 16]] for key in aligned},
    )
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", architecture, 32),
        options={"num_warps": case.num_warps, "num_stages": case.num_stages},
    )
    return {"shared": compiled.metadata.shared, **_registers(compiled.asm["ptx"], architecture)}


def _registers(ptx: str, architecture: int) -> dict[str, int | str]:
    """Registers for each thread and bytes spilled, as ptxas reports them."""
    target = re.search(r"\.target\s+(sm_\w+)", ptx)
    assert target
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.ptx"
        file.write_text(ptx)
        command = [
            get_ptxas(architecture).path,
            "-v",
            f"--gpu-name={target[1]}",
            file,
            "-o",
            file.with_suffix(".cubin"),
        ]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill", report))
    used = re.search(r"Used (\d+) registers", report)
    return {"spilled": spilled, "registers": int(used[1]) if used else 0}


if __name__ == "__main__":
    main()
