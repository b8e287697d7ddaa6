"""What reports of measurements share: percentiles, tables in Markdown, lines of JSON, machine and commit."""

from __future__ import annotations

import json
import platform
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil


def report(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def percentile(values: Sequence[float], percent: int) -> float:
    """Rounded to thousandths; 0 without values."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 3) if ordered else 0.0


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [list(map(str, headings)), ["---"] * len(headings), *(list(map(str, row)) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine() -> str:
    name = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    memory = psutil.virtual_memory().total / (1 << 30)
    return f"{name}, {psutil.cpu_count()} logical cores, {memory:.0f} GiB, Python {platform.python_version()}"


def commit() -> str:
    here = Path(__file__).parent
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def date() -> str:
    return time.strftime("%Y-%m-%d")
