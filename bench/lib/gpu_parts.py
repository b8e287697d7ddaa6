"""The parts of `gpu_first_minutes.py`, each run as a process: `python gpu_parts.py PART [--dry-run]`."""

from __future__ import annotations

import importlib.metadata
import logging
import platform
import shutil
import subprocess
import sys
import time
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import torch

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"
AGREEMENT = (
    "tests/kernels/test_triton.py",
    "tests/kernels/test_sampling_agreement.py",
    "tests/kernels/test_automaton_pool.py",
    "tests/runtime/model/test_triton.py",
    "tests/runtime/model/test_graphs.py",
    "tests/runtime/model/test_sampling_graphs.py",
)
QUICK_TEST = "tests/kernels/test_sampling_agreement.py::test_impossible_tokens_are_listed_once_each"
QUICK_CASES = ("sampling-record", "automaton-keep")
DECODE_STEPS = 8
LOG_CHARACTERS = 6000
"""of the end of a server's log, which are printed"""


def environment(dry: bool) -> None:
    print(f"Python {platform.python_version()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in (*project["dependencies"], "triton>=3.6", "transformers>=5.0", "pytest>=8.4"):
        name = requirement.partition(">=")[0]
        try:
            print(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            print(f"{requirement}: not installed")
    for tool in ("gcc", "nvidia-smi", "compute-sanitizer"):
        print(f"{tool}: {shutil.which(tool) or 'not found'}")
    if not dry:
        print(torch.cuda.get_device_properties(0))
        print(subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=False).stdout)


def variants(dry: bool) -> None:
    from aot_cases import all_cases
    from aot_compile import compiled_case

    architecture = 90
    if not dry:
        major, minor = torch.cuda.get_device_capability()
        architecture = 10 * major + minor
    cases = [case for case in all_cases() if not dry or case.name in QUICK_CASES]
    failed = 0
    for case in cases:
        try:
            kernel = compiled_case(case, architecture)
            if not dry:
                kernel._init_handles()
        except Exception as error:
            failed += 1
            print(f"{case.name}: {type(error).__name__}: {error}")
    done = "compiled" if dry else "compiled and loaded"
    print(f"{len(cases) - failed} of {len(cases)} cases {done} for sm_{architecture}")
    sys.exit(failed > 0)


def captures(dry: bool) -> None:
    if dry:
        skip("CUDA graphs need a GPU")
    from arbora.runtime.model.capture import CudaCapture

    capture, number = CudaCapture.__call__, 0

    def timed(self: CudaCapture, work: Callable[[], None]) -> Callable[[], None]:
        nonlocal number
        number += 1
        begun, free = time.perf_counter(), torch.cuda.mem_get_info()[0]
        print(f"graph {number}: {work}", flush=True)
        replay = capture(self, work)
        replay()
        torch.cuda.synchronize()
        taken = (free - torch.cuda.mem_get_info()[0]) >> 10
        print(f"  captured and replayed in {time.perf_counter() - begun:.2f} s, {taken} KiB", flush=True)
        return replay

    CudaCapture.__call__ = timed  # type: ignore[method-assign]
    _small_model("cuda")
    print(f"{number} graphs")


def steps(dry: bool) -> None:
    """Counts the waits for the device in each decode step, by PyTorch's warnings."""
    driver = _small_model("cpu" if dry else "cuda")
    for slot in range(4):
        driver.start(slot)
        driver.run([driver.row(slot, [1, 2, 3, 4, 5])])
    counts = []
    for _ in range(DECODE_STEPS):
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            if not dry:
                torch.cuda.set_sync_debug_mode("warn")
            driver.run([driver.row(slot) for slot in range(4)])
            if not dry:
                torch.cuda.set_sync_debug_mode("default")
        found = [wait for wait in waits if "synchronizing CUDA operation" in str(wait.message)]
        counts.append(len(found))
        for wait in found:
            print(f"a wait for the device at {wait.filename}:{wait.lineno}")
    print(f"waits of {DECODE_STEPS} decode steps, beside that for the tokens' event: {counts}; allowed: none")
    sys.exit(max(counts) > 0)


def _small_model(device: str) -> Any:
    from checkpoints import WINDOWED, random_model, save_model
    from step_driver import StepDriver

    logging.basicConfig(level=logging.INFO)
    with TemporaryDirectory() as directory:
        model = save_model(random_model("qwen3", **WINDOWED), Path(directory) / "model")
        return StepDriver.load(model, device=device, page_size=16, max_model_len=64)


def agreement(dry: bool) -> None:
    tests = [QUICK_TEST] if dry else list(AGREEMENT)
    sys.exit(subprocess.run([sys.executable, "-m", "pytest", "-q", *tests], cwd=ROOT, check=False).returncode)


def sanitizer(dry: bool) -> None:
    tool = shutil.which("compute-sanitizer")
    if dry or tool is None:
        skip("compute-sanitizer needs a GPU" if dry else "compute-sanitizer is not installed")
    for check in ("memcheck", "racecheck"):
        tests = [sys.executable, "-m", "pytest", "-q", "-x", "tests/kernels/test_sampling_agreement.py"]
        command = [tool, "--tool", check, "--error-exitcode", "1", *tests]
        if status := subprocess.run(command, cwd=ROOT, check=False).returncode:
            sys.exit(status)


def kernels(dry: bool) -> None:
    command = [sys.executable, str(BENCH / "gpu_kernels.py"), *(["--interpreted"] if dry else [])]
    sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)


def server(dry: bool) -> None:
    if dry:
        skip("an 8B shape needs a GPU")
    from compared_servers import ServerCommand
    from started_server import started

    with TemporaryDirectory() as directory:
        model = Path(directory) / "8b"
        make = [sys.executable, str(BENCH / "make_checkpoint.py"), "--shape", "8b", str(model)]
        subprocess.run(make, cwd=ROOT, check=True)
        command = [sys.executable, "-P", "-m", "arbora", "serve", str(model)]
        try:
            with started(ServerCommand("arbora", command), Path(directory)) as at:
                print(f"ready after {at.ready_s} s", flush=True)
                for in_flight in (1, 8, 64):
                    load = [sys.executable, str(BENCH / "serve.py"), "--url", at.url, "--workloads", "chat"]
                    subprocess.run([*load, "--in-flight", str(in_flight)], cwd=ROOT, check=True)
        finally:
            for log in Path(directory).glob("*.log"):
                print(log.read_text(errors="replace")[-LOG_CHARACTERS:], flush=True)


def skip(reason: str) -> NoReturn:
    print(reason)
    sys.exit(3)


PARTS: dict[str, Callable[[bool], None]] = {
    part.__name__: part
    for part in (environment, variants, captures, steps, agreement, sanitizer, kernels, server)
}

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent))
    PARTS[sys.argv[1]]("--dry-run" in sys.argv[2:])
