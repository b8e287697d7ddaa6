"""Checks of the processor, the GPU, memory, limits, disks and the port, and their findings."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Literal

import msgspec

from ....runtime.byte_sizes import in_units
from ....runtime.cache_directory import cache_directory
from ....runtime.config import BUILTIN_MODEL, Device, ServeConfig
from ....runtime.system_cores import count_usable_cores, find_cores, find_quota
from ....runtime.system_memory import memory_limit
from ...launch.listening import Listening

Level = Literal["ok", "warning", "error"]


class Finding(msgspec.Struct, frozen=True):
    """The result of a check. `fix` says what to do about a warning or an error."""

    level: Level
    text: str
    fix: str = ""


MIN_FILES = 4096  # file descriptors that a server should have; each stream takes one
MIN_MEMORY = 2 << 30
MIN_DISK = 2 << 30
CPU_FEATURES = {
    "avx2": "required for fast kernels",
    "avx512f": "vectors twice as wide",
    "avx512vnni": "int8 and int4 weights",
    "avx512bf16": "bfloat16 weights and KV cache",
    "avx512vbmi": "fp8 weights",
    "amx-bf16": "bfloat16 prompts, attention of prompts",
    "amx-int8": "int8 and int4 prompts",
}
"""The features of x86 that kernels use, by LLVM's names, with their use."""


def check_cpu() -> Finding:
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    found = [name for name in CPU_FEATURES if features.get(name)]
    kind = f"{binding.get_host_cpu_name()} with {', '.join(found) or 'none of the features that kernels use'}"
    if "avx2" in found or os.uname().machine != "x86_64":
        return Finding("ok", kind)
    return Finding("warning", kind, "Kernels are slow without AVX2: use a newer CPU or a GPU.")


def check_threads() -> Finding:
    """Checks on how many threads models run on the CPU, and says why."""
    cores, quota, usable = find_cores(), find_quota(), count_usable_cores()
    logical, of_machine = sum(len(core.cpus) for core in cores), os.cpu_count() or 1
    text = f"{_count(len(cores) or usable, 'core')} ({logical or of_machine} logical)"
    if 0 < logical < of_machine:
        text += f" of the {of_machine} logical ones in the machine, by the affinity mask"
    if (nodes := len({core.node for core in cores})) > 1:
        text += f", on {nodes} NUMA nodes"
    if quota is not None:
        text += f"; a quota of {quota.cpus:g} CPUs ({quota.file})"
    asked = os.environ.get("OMP_NUM_THREADS")
    if asked is None:
        reason = "as the quota allows" if usable < len(cores) else "one for each core"
        return Finding("ok", f"{text}; models run on {_count(usable, 'thread')}, {reason}")
    fix = f"Unset OMP_NUM_THREADS, or set it to a number from 1 to {usable}."
    threads = asked.partition(",")[0].strip()  # the first number is that of the outermost region
    if not threads.isdecimal() or int(threads) < 1:
        return Finding("warning", f"{text}; OMP_NUM_THREADS={asked} is no number of threads", fix)
    text += f"; models run on {_count(int(threads), 'thread')}, as OMP_NUM_THREADS says"
    if int(threads) > usable:
        what = "the quota allows" if usable < len(cores) else "there are cores"
        return Finding("warning", f"{text}, more than {what}, so they wait for each other", fix)
    return Finding("ok", text)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def check_gpu(device: Device) -> Finding:
    if device == "cpu":
        return Finding("ok", "none that this process may use; models run on the CPU")
    import torch

    driver = _driver()
    if not torch.cuda.is_available():
        built = torch.version.cuda or "no CUDA"
        return Finding(
            "error",
            f"a GPU is there (driver {driver}), but PyTorch for {built} can't use it",
            "Update the driver until `nvidia-smi` works and shows this version of CUDA, or use --device cpu.",
        )
    free, total = torch.cuda.mem_get_info()
    major, minor = torch.cuda.get_device_capability()
    name = torch.cuda.get_device_name()
    text = f"{name} (sm_{major}{minor}), driver {driver}, {in_units(free)} of {in_units(total)} free"
    if major < 8:
        return Finding("warning", text, "The kernels are made for sm_80 and newer: use --device cpu.")
    return Finding("ok", text)


def _driver() -> str:
    try:
        command = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        return done.stdout.strip().splitlines()[0]
    except (OSError, subprocess.TimeoutExpired, IndexError):
        return "unknown"


def check_compiler(device: Device) -> Finding:
    """Checks for a C compiler and Python's headers, which Triton needs."""
    import sysconfig

    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    headers = (Path(sysconfig.get_paths()["include"]) / "Python.h").exists()
    if compiler and headers:
        return Finding("ok", f"{compiler}, and Python's headers")
    text = f"{compiler or 'no C compiler'}, {'with' if headers else 'without'} Python's headers"
    if device == "cpu":
        return Finding("ok", f"{text}; only a GPU needs them")
    return Finding("error", text, "Run `apt install gcc python3-dev`.")


def check_memory() -> Finding:
    import torch

    from ....runtime.model.devices import free_memory

    free = free_memory(torch.device("cpu"))
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = min(memory_limit() or total, total)
    text = f"{in_units(free)} free of {in_units(limit)}"
    text += f", the limit of this container ({in_units(total)} in the machine)" if limit < total else ""
    if free < MIN_MEMORY:
        return Finding("warning", text, "End other programs, or choose a small model.")
    return Finding("ok", text)


def check_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"a process may open {soft:,} files (at most {hard:,})"
    if soft >= MIN_FILES:
        return Finding("ok", text)
    fix = f"Run `ulimit -n {min(hard, 65536)}` before `arbora serve`: each open stream takes one."
    return Finding("warning", text, fix)


def check_disk(directory: Path) -> Finding:
    """Checks the free bytes on the disk of a directory that may not exist yet."""
    place = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(place).free
    text = f"{in_units(free)} free for {directory}"
    if free < MIN_DISK:
        return Finding("warning", text, "Delete files there, or set the directory to one on another disk.")
    return Finding("ok", text)


def check_hub_cache() -> Finding:
    from huggingface_hub import constants

    return check_disk(Path(constants.HF_HUB_CACHE))


def check_kernel_cache() -> Finding:
    """Checks whether numba may cache the code that it compiles."""
    directory = Path(os.environ.get("NUMBA_CACHE_DIR") or cache_directory("kernels").parent)
    place = next(path for path in (directory, *directory.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return Finding(
            "error",
            f"{place} can't be written ({error.strerror}), so each start compiles all kernels",
            "Make it writable, or set XDG_CACHE_HOME or NUMBA_CACHE_DIR to a directory that is.",
        )
    return check_disk(directory)


def check_port(host: str, port: int) -> Finding:
    """Opens the port as `arbora serve` does."""
    config = ServeConfig(model=BUILTIN_MODEL, served_model_name="", host=host, port=port)
    try:
        Listening.open(config).close()
    except ValueError as error:
        message = str(error)
        reason, _, fix = message.partition(" (")[2].partition("). ")
        return Finding("warning", f"{host}:{port}: {reason or message}", fix)
    return Finding("ok", f"{host}:{port} is free")
