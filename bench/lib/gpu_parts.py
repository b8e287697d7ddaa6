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
    "tests/runtime/model/test_forward_graphs.py",
    "tests/runtime/model/test_sampling_graphs.py",
    "tests/runtime/model/test_masks_beside_forward.py",
    "tests/runtime/model/test_step_budgets.py",
)
SANITIZED = ("tests/kernels/test_sampling_agreement.py", "tests/kernels/test_automaton_pool.py")
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


def branches(dry: bool) -> None:
    """Captures a copy beside another one, and replays the graph with other inputs than at the capture."""
    from arbora.runtime.model.capture import CudaCapture
    from arbora.runtime.model.forward_graphs import SideStream

    device = torch.device("cpu" if dry else "cuda")
    side = SideStream(device)
    given, doubled, negated, joined = (torch.zeros(1 << 20, device=device) for _ in range(4))

    def work() -> None:
        with side.beside(lambda: torch.mul(given, 2, out=doubled)):
            torch.neg(given, out=negated)
        torch.add(doubled, negated, out=joined)

    replay = work if dry else CudaCapture()(work)
    for number in range(1, 4):
        given.fill_(number)
        replay()
        assert bool((joined == number).all()), f"step {number} read results of another step"
    print("without streams" if dry else "captured and replayed", "with the right results")


def captures(dry: bool) -> None:
    """Without a GPU the launches of each graph are recorded in Triton's interpreter."""
    failed = _recorded_graphs() if dry else _captured_graphs()
    print(f"{len(failed)} graphs could not be captured: {', '.join(failed) or 'none'}")
    sys.exit(bool(failed))


def _captured_graphs() -> list[str]:
    """Captures all graphs of a small model, and runs each. The names of those that failed."""
    from arbora.runtime.model.capture import Captures, CudaCapture

    capture, capture_named = CudaCapture.__call__, Captures.capture
    failed: list[str] = []

    def timed(self: CudaCapture, work: Callable[[], None]) -> Callable[[], None]:
        begun, free = time.perf_counter(), torch.cuda.mem_get_info()[0]
        replay = capture(self, work)
        replay()
        torch.cuda.synchronize()
        taken = (free - torch.cuda.mem_get_info()[0]) >> 10
        print(f"  captured and replayed in {time.perf_counter() - begun:.2f} s, {taken} KiB", flush=True)
        return replay

    def named(self: Captures, work: Callable[[], None], name: str) -> Callable[[], None] | None:
        print(f"{name}: {work}", flush=True)
        replay = capture_named(self, work, name)
        if replay is None:
            failed.append(name)
        return replay

    CudaCapture.__call__ = timed  # type: ignore[method-assign]
    Captures.capture = named  # type: ignore[method-assign]
    _small_model("cuda")
    return failed


def _recorded_graphs() -> list[str]:
    import interpreted_triton  # noqa: F401 (before Triton)
    import logged_steps
    from checkpoints import random_model, save_model
    from triton_device import triton_kernels

    log = logged_steps.Log()
    with TemporaryDirectory() as directory, triton_kernels():
        model = save_model(random_model("llama", num_hidden_layers=1), Path(directory) / "model")
        logged_steps.with_graphs(model, log)
    print(f"{len(log.graphs)} graphs recorded")
    return [] if log.graphs else ["all"]


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
            _decode(driver, None if dry else "warn")
        found = [wait for wait in waits if "synchronizing CUDA operation" in str(wait.message)]
        counts.append(len(found))
        for wait in found:
            print(f"a wait for the device at {wait.filename}:{wait.lineno}")
    print(f"waits of {DECODE_STEPS} decode steps, beside that for the tokens' event: {counts}; allowed: none")
    _decode(driver, None if dry else "error")
    sys.exit(max(counts) > 0)


def _decode(driver: Any, waits: str | None) -> None:
    """A step of four rows. waits: what PyTorch does at each wait for the device."""
    if waits is not None:
        torch.cuda.set_sync_debug_mode(waits)
    driver.run([driver.row(slot) for slot in range(4)])
    if waits is not None:
        torch.cuda.set_sync_debug_mode("default")


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
    """Without a GPU the tests run, but without the tool."""
    tool = shutil.which("compute-sanitizer")
    if not dry and tool is None:
        skip("compute-sanitizer is not installed")
    for check in ("memcheck",) if dry else ("memcheck", "racecheck"):
        tests = [sys.executable, "-m", "pytest", "-q", "-x", *([QUICK_TEST] if dry else SANITIZED)]
        prefix = [] if dry or tool is None else [tool, "--tool", check, "--error-exitcode", "1"]
        if status := subprocess.run([*prefix, *tests], cwd=ROOT, check=False).returncode:
            sys.exit(status)


def kernels(dry: bool) -> None:
    command = [sys.executable, str(BENCH / "gpu_kernels.py"), *(["--interpreted"] if dry else [])]
    sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)


def host(dry: bool) -> None:
    command = [sys.executable, str(BENCH / "gpu_host.py"), *(["--count", "3"] if dry else [])]
    sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)


def server(dry: bool) -> None:
    """Without a GPU the model of the package answers, and no load is measured."""
    from compared_servers import ServerCommand
    from server_process import start

    with TemporaryDirectory() as directory:
        model = Path(directory) / "8b"
        if not dry:
            make = [sys.executable, str(BENCH / "make_checkpoint.py"), "--shape", "8b", str(model)]
            subprocess.run(make, cwd=ROOT, check=True)
        command = [sys.executable, "-P", "-m", "arbora", "serve", *([] if dry else [str(model)])]
        try:
            with start(ServerCommand("arbora", command), Path(directory)) as at:
                print(f"ready after {at.ready_s} s", flush=True)
                for in_flight in () if dry else (1, 8, 64):
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
    for part in (
        environment,
        variants,
        branches,
        captures,
        steps,
        agreement,
        sanitizer,
        kernels,
        host,
        server,
    )
}

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent))
    PARTS[sys.argv[1]]("--dry-run" in sys.argv[2:])
