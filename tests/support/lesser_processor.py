"""Runs programs whose numba functions are compiled for this processor without some of its instructions, so
that they run on it."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from llvmlite import binding

SUPPORT = Path(__file__).parent

Lacking = str | tuple[str, ...]
"""beginnings of LLVM's names of features"""


def features_without(lacking: Lacking) -> dict[str, bool]:
    """Whether the program may use each feature that the processor has."""
    return {
        name: bool(on) and not name.startswith(lacking)
        for name, on in binding.get_host_cpu_features().items()
    }


def output_without(lacking: Lacking, arguments: Sequence[str], cache: Path | None = None) -> str:
    """Returns the output of Python run with `arguments`.

    cache: numba's directory, if not the usual one. If this processor lacks the instructions too, the program
    is the usual one, and so is the directory.
    """
    features = features_without(lacking)
    if features == features_without(()):
        cache, of_numba = None, {}
    else:
        shown = ",".join(f"{'+' if on else '-'}{name}" for name, on in features.items())
        of_numba = {"NUMBA_CPU_FEATURES": shown}
    environment = {
        **os.environ,
        **of_numba,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(SUPPORT), os.environ.get("PYTHONPATH")))),
        "PYTHONSAFEPATH": "1",
        **({} if cache is None else {"NUMBA_CACHE_DIR": str(cache)}),
    }
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
