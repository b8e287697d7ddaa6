"""The Triton kernels to compile ahead of time, each with one set of compile-time constants.

Modules named aot_cases_<topic>.py in this folder hold a list CASES. tests/kernels/test_aot.py compiles the
jobs of `some_jobs`, bench/gpu_static.py --all those of `all_jobs`.
"""

import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

TARGETS = (80, 90, 100)
"""compute capabilities of the datacenter GPUs for which kernels are compiled; 90 is sm_90"""

SHARED = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
"""bytes of shared memory that a block may use on datacenter GPUs"""

SHARED_OF_PROCESSOR = {80: 164 << 10, 90: 228 << 10, 100: 228 << 10}
"""bytes of shared memory of a multiprocessor"""
RESERVED = 1024
"""bytes of shared memory that the driver takes for each block"""
REGISTERS, THREADS_OF_WARP, REGISTER_UNIT = 65536, 32, 8
MAX_WARPS, MAX_PROGRAMS = 64, 32
"""of a multiprocessor (CUDA programming guide, compute capabilities 8.0 to 10.0)"""


def programs_at_a_time(warps: int, registers: int, shared: int, architecture: int) -> int:
    """How many programs one multiprocessor runs at the same time."""
    taken = -(-registers // REGISTER_UNIT) * REGISTER_UNIT * warps * THREADS_OF_WARP
    by_shared = SHARED_OF_PROCESSOR[architecture] // (shared + RESERVED)
    return min(REGISTERS // taken, by_shared, MAX_WARPS // warps, MAX_PROGRAMS)


class MatrixProducts(NamedTuple):
    """The instructions that multiply matrices in the main loop, as each warp executes them."""

    opcode: str
    """a regular expression"""
    number: int


@dataclass(frozen=True)
class AotCase:
    name: str
    """unique, readable: it names the test"""
    kernel: str
    """module:function below arbora.kernels, such as elementwise.cuda:rms_norm_kernel"""
    signature: Mapping[str, str]
    """Triton type of each run-time argument, such as *bf16, i32, fp32"""
    constants: Mapping[str, int | float | bool | None]
    """value of each tl.constexpr argument"""
    num_warps: int = 4
    num_stages: int = 3
    max_shared: int | Mapping[int, int] = 99 << 10
    """bytes that a block may use, if they differ by architecture; 99 KiB is what every GPU grants"""
    pipelined_loops: int = 0
    """loops in which at least two blocks of keys and values must be copied ahead"""
    max_spill_bytes: int = 0
    max_loop_spills: int = 0
    """instructions"""
    architectures: tuple[int, ...] = TARGETS
    programs: int = 1
    """that a multiprocessor must be able to run at the same time"""
    products: MatrixProducts | Mapping[int, MatrixProducts] | None = None
    """a mapping if they differ by architecture"""
    constants_by_architecture: Mapping[str, Mapping[int, bool]] = field(default_factory=dict)
    """more of `constants`, which differ by architecture"""
    aligned: tuple[str, ...] = field(default=())
    """arguments known to be multiples of 16, besides all pointers"""

    def products_on(self, architecture: int) -> MatrixProducts | None:
        return self.products[architecture] if isinstance(self.products, Mapping) else self.products


def faults(case: AotCase, architecture: int, result: Mapping[str, Any]) -> list[str]:
    """The expectations of the case that its result from `aot_compile.compile_and_measure` does not meet."""
    if "error" in result:
        return [result["error"]]
    limit = case.max_shared if isinstance(case.max_shared, int) else case.max_shared[architecture]
    expected = case.products_on(architecture)
    products = expected.number if expected else result["products"]
    together = programs_at_a_time(case.num_warps, result["registers"], result["shared"], architecture)
    kept = {
        f"{result['shared']} bytes of shared memory": result["shared"] <= limit,
        f"{result['pipelined']} loops copy ahead": result["pipelined"] >= case.pipelined_loops,
        f"{result['spilled']} bytes spilled": result["spilled"] <= case.max_spill_bytes,
        f"{result['loop_spills']} spills in loops": result["loop_spills"] <= case.max_loop_spills,
        f"{result['products']} matrix instructions, not {products}": result["products"] == products,
        f"{together} programs at a time": together >= case.programs,
    }
    return [fault for fault, is_kept in kept.items() if not is_kept]


def all_cases() -> list[AotCase]:
    names = sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]))
    modules = [importlib.import_module(name) for name in names if name.startswith("aot_cases_")]
    return [case for module in modules for case in module.CASES]


def all_jobs() -> list[tuple[AotCase, int]]:
    """Each case with each of its architectures."""
    return [(case, architecture) for case in all_cases() for architecture in case.architectures]


def some_jobs() -> list[tuple[AotCase, int]]:
    """What `make test` compiles: each case for one architecture, in turn. If a kernel depends on the
    architecture and has fewer cases than there are architectures, its first cases are compiled for the
    other architectures too."""
    of_kernel: defaultdict[str, list[AotCase]] = defaultdict(list)
    for case in all_cases():
        if case.architectures == TARGETS:
            of_kernel[case.kernel].append(case)
    chosen = set()
    for first, cases in enumerate(of_kernel.values()):
        least = len(TARGETS) if any(map(depends_on_architecture, cases)) else 1
        for number in range(max(len(cases), least)):
            chosen.add((cases[number % len(cases)].name, TARGETS[(first + number) % len(TARGETS)]))
    return [
        (case, architecture)
        for case, architecture in all_jobs()
        if case.architectures != TARGETS or (case.name, architecture) in chosen
    ]


def depends_on_architecture(case: AotCase) -> bool:
    """Whether the kernel has instructions that some architectures lack: for matrices, or to wait for the
    kernel before."""
    return case.products is not None or bool(case.constants_by_architecture)
