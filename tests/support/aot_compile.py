"""Compiles ahead-of-time cases in a process without the Triton interpreter.

Reads a line of JSON for each case, [name, architecture], and prints one with what the compiler says."""

import importlib
import json
import re
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import triton
from aot_cases import AotCase, all_cases
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

OPCODE = r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9_.]*)"
KINDS = {
    "matrix": r"[HIQ]G?MMA|UTC\w*MMA",
    "shared to matrix": r"LDSM|STSM|LDS|STS",
    "copies": r"LDGSTS|UBLKCP|UTMALDG|LDG|STG",
    "float": r"FADD|FMUL|FFMA|FMNMX\w*|FSEL|FSETP|F2FP|HADD2|HMUL2|HFMA2",
    "special": r"MUFU",
    "shuffles": r"SHFL",
    "waits": r"BAR|SYNCS|DEPBAR|LDGDEPBAR|WARPGROUP|WARPSYNC",
}
"""opcodes of each kind of instruction; the others compute addresses and conditions"""


def main() -> None:
    cases = {case.name: case for case in all_cases()}
    for line in sys.stdin:
        name, architecture = json.loads(line)
        case = cases[name]
        measured = compile_and_measure(case, architecture, counts_loop=case.products is not None)
        print(json.dumps(measured), flush=True)


def compile_and_measure(case: AotCase, architecture: int, counts_loop: bool = True) -> dict[str, Any]:
    """The compiled case's registers, its bytes of shared and local memory, and the instructions of its main
    loop; or the error. Writes nothing to stdout.

    counts_loop: False leaves the loop's instructions at 0 where nothing is spilled, which takes less time
    """
    try:
        return _measure(case, architecture, counts_loop)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def compiled_case(case: AotCase, architecture: int) -> Any:
    """Compiles the case for an architecture: 90 is sm_90."""
    module, name = case.kernel.split(":")
    kernel = getattr(importlib.import_module(f"arbora.kernels.{module}"), name)
    aligned = {*case.aligned, *(key for key, kind in case.signature.items() if kind.startswith("*"))}
    aligned -= {each.name for each in kernel.params if each.do_not_specialize_on_alignment}
    own = {key: values[architecture] for key, values in case.constants_by_architecture.items()}
    constants = {**case.constants, **own}
    kinds = {key: case.signature.get(key, "constexpr") for key in kernel.arg_names}
    source = ASTSource(
        kernel,
        signature=kinds,
        constexprs={(kernel.arg_names.index(key),): value for key, value in constants.items()},
        attrs={(kernel.arg_names.index(key),): [["tt.divisibility", 16]] for key in aligned},
    )
    return triton.compile(
        source,
        target=GPUTarget("cuda", architecture, 32),
        options={"num_warps": case.num_warps, "num_stages": case.num_stages},
    )


def _measure(case: AotCase, architecture: int, counts_loop: bool) -> dict[str, Any]:
    with redirect_stdout(StringIO()) as log, knobs.nvidia.scope(), knobs.compilation.scope():
        knobs.nvidia.dump_ptxas_log = True
        knobs.compilation.always_compile = True  # from Triton's cache there is no log
        compiled = compiled_case(case, architecture)
    registers = _registers(log.getvalue())
    # The disassembler takes longer than compiling most kernels.
    is_needed = counts_loop or _local_bytes(log.getvalue()) > 0
    lines = _disassembled(compiled.asm["cubin"]) if is_needed else []
    loop = _main_loop(lines)
    wanted = case.products_on(architecture)
    return {
        "shared": compiled.metadata.shared,
        "pipelined": _pipelined_loops(compiled.asm["ttgir"]),
        "loop_spills": _loop_spills(lines),
        "products": sum(bool(wanted and re.fullmatch(wanted.opcode, each)) for each in loop),
        "loop": _by_kind(loop),
        **registers,
    }


def _loop_spills(lines: list[str]) -> int:
    """The instructions in loops that store a register to local memory or load it from there."""
    inside = {number for start, end in _loops(lines) for number in range(start, end)}
    return sum(bool(re.search(r"\b(STL|LDL)\b", lines[number])) for number in inside)


def _main_loop(lines: list[str]) -> list[str]:
    """The opcodes of the innermost loop that has the most for matrices; of equal ones that without masks, the
    shortest. Without such opcodes the longest."""
    loops = _loops(lines)
    innermost = [one for one in loops if not any(one[0] <= start and end < one[1] for start, end in loops)]
    bodies: list[list[str]] = [[]]
    for start, end in innermost:
        found = [re.search(OPCODE, line) for line in lines[start : end + 1]]
        bodies.append([each[1] for each in found if each])
    if not any(_is_matrix(opcode) for body in bodies for opcode in body):
        return max(bodies, key=len)
    return max(bodies, key=lambda body: (sum(map(_is_matrix, body)), -len(body)))


def _is_matrix(opcode: str) -> bool:
    return bool(re.match(KINDS["matrix"], opcode))


def _by_kind(opcodes: list[str]) -> dict[str, int]:
    counts = dict.fromkeys((*KINDS, "other"), 0)
    for opcode in opcodes:
        base = opcode.partition(".")[0]
        counts[next((kind for kind, of in KINDS.items() if re.fullmatch(of, base)), "other")] += 1
    return counts


def _disassembled(binary: bytes) -> list[str]:
    disassembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        # Without the analysis of the data flow it takes a fifth less time and prints the same.
        command: list[str | Path] = [disassembler, "--print-code", "--no-dataflow", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def _loops(lines: list[str]) -> list[tuple[int, int]]:
    """The first line and the branch of each loop."""
    starts = {
        line.strip().rstrip(":"): number for number, line in enumerate(lines) if line.startswith(".L_x")
    }
    loops = []
    for number, line in enumerate(lines):
        branch = re.search(r"BRA(?:\.U)? (?:!?U?P\d+, )?`\((\.L_x_\d+)\)", line)
        if branch and starts[branch[1]] < number:
            loops.append((starts[branch[1]], number))
    return loops


def _pipelined_loops(code: str) -> int:
    """The loops that wait for a block while the copies of at least one key and one value block go on."""
    loops = re.split(r"scf\.for ", code)[1:]
    waits = [re.findall(r"async_wait.*num = (\d+)", loop.partition("scf.yield")[0]) for loop in loops]
    return sum(bool(loop) and min(map(int, loop)) >= 2 for loop in waits)


def _local_bytes(log: str) -> int:
    """Bytes of local memory, which hold what is spilled."""
    return sum(map(int, re.findall(r"(\d+) bytes (?:stack frame|spill)", log)))


def _registers(log: str) -> dict[str, int]:
    """Registers for each thread and bytes spilled, as ptxas reports them."""
    [used] = re.findall(r"Used (\d+) registers", log)
    return {"spilled": sum(map(int, re.findall(r"(\d+) bytes spill", log))), "registers": int(used)}


if __name__ == "__main__":
    main()
