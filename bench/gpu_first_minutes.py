"""Everything to try in the first minutes on a GPU, in one Markdown and one JSON file.

    PYTHONSAFEPATH=1 python bench/gpu_first_minutes.py --output build/first-minutes

Each part runs in a process of its own with a time limit, so the others run if it fails or hangs:

- environment: device, driver, versions, and the packages that are missing
- variants: all ahead-of-time cases of the tests, compiled and loaded for this GPU
- branches: a graph in which one kernel runs beside others, on a second stream
- captures: all CUDA graphs of a small model, with the time and memory of each, and those that failed
- steps: decode steps of that model, in which PyTorch reports each wait for the device; then one in which a
  wait is an error
- agreement: tokens and log-probabilities of a small random model on the GPU and on the CPU, and every kernel
- sanitizer: some of these tests under compute-sanitizer, if it is installed
- kernels: sampling, decode attention and a product of one row, beside their floors
- host: the host's time for a step
- server: a random checkpoint of an 8B shape through HTTP

Without a GPU it ends with status 2. `--dry-run` then runs of each part what the CPU and Triton's interpreter
can run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch

ROOT = Path(__file__).parents[1]
PARTS_MODULE = Path(__file__).parent / "lib" / "gpu_parts.py"
SKIPPED = 3
"""exit status of a part that cannot run here; its last line says why"""
MAX_OUTPUT = 8000
LIMITS = {
    "environment": 60,
    "variants": 600,
    "branches": 120,
    "captures": 600,
    "steps": 300,
    "agreement": 900,
    "sanitizer": 900,
    "kernels": 600,
    "host": 120,
    "server": 1800,
}
"""seconds"""


class Result(NamedTuple):
    part: str
    status: str
    seconds: float
    output: str


def run_part(part: str, *, dry: bool, limit: float) -> Result:
    command = [sys.executable, str(PARTS_MODULE), part, *(["--dry-run"] if dry else [])]
    support = str(ROOT / "tests" / "support")
    path = os.pathsep.join(filter(None, (support, os.environ.get("PYTHONPATH"))))
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    begun = time.monotonic()
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**inherited, "PYTHONSAFEPATH": "1", "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = child.communicate(timeout=limit)
        status = {0: "passed", SKIPPED: "skipped"}.get(child.returncode, f"failed ({child.returncode})")
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        output, _ = child.communicate()
        status = f"stopped after {limit:.0f} s"
    return Result(part, status, round(time.monotonic() - begun, 1), output[-MAX_OUTPUT:].strip())


def write(results: list[Result], output: Path) -> None:
    """Writes both files anew, so that they hold the parts that ended if the machine is lost."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".json").write_text(json.dumps([result._asdict() for result in results], indent=2))
    lines = ["# The first minutes on a GPU", "", "| part | status | seconds |", "|---|---|---|"]
    lines += [f"| {result.part} | {result.status} | {result.seconds} |" for result in results]
    for result in results:
        lines += ["", f"## {result.part}", "", "```", result.output, "```"]
    output.with_suffix(".md").write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("build/first-minutes"), help="without a suffix")
    parser.add_argument("--parts", default=",".join(LIMITS), help="comma-separated (default: all)")
    parser.add_argument("--limit", type=float, help="seconds for each part, instead of its own limit")
    parser.add_argument("--dry-run", action="store_true", help="without a GPU, as far as that goes")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := [part for part in parts if part not in LIMITS]:
        parser.error(f"--parts: unknown {', '.join(unknown)}; there are {', '.join(LIMITS)}")
    if not options.dry_run and not torch.cuda.is_available():
        print(f"no CUDA device: PyTorch {torch.__version__} finds none; see --dry-run", file=sys.stderr)
        return 2
    results: list[Result] = []
    for part in parts:
        result = run_part(part, dry=options.dry_run, limit=options.limit or LIMITS[part])
        results.append(result)
        write(results, options.output)
        print(f"{result.part}: {result.status}, {result.seconds} s", flush=True)
    return 0 if all(result.status in ("passed", "skipped") for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
