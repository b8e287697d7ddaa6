"""The Triton kernels to compile ahead of time, each with one set of compile-time constants.

Modules named aot_cases_<topic>.py in this folder hold a list CASES; test_kernels_aot.py compiles all.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SHARED = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
"""bytes of shared memory that a block may use on datacenter GPUs"""


@dataclass(frozen=True)
class AotCase:
    name: str
    """unique, readable: it names the test"""
    kernel: str
    """module:function below arbora.kernels, such as norm_triton:rms_norm_kernel"""
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
    aligned: tuple[str, ...] = field(default=())
    """arguments known to be multiples of 16, besides all pointers"""


def all_cases() -> list[AotCase]:
    names = sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]))
    modules = [importlib.import_module(name) for name in names if name.startswith("aot_cases_")]
    return [case for module in modules for case in module.CASES]
