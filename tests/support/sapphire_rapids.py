"""Runs programs whose numba functions are compiled for a processor with AMX, which the machine may lack."""

import os
import subprocess
import sys
from pathlib import Path

FEATURES = "amx-bf16 amx-int8 amx-tile avx512bf16 avx512f avx512bw avx512dq avx512vl avx512vnni f16c fma"


def output_for_sapphire_rapids(program: str, cache: Path) -> str:
    """Returns the output of `program`.

    `cache` is an empty directory: numba can't print code that it finds compiled.
    """
    environment = {
        **os.environ,
        "NUMBA_CPU_NAME": "sapphirerapids",
        "NUMBA_CPU_FEATURES": ",".join(f"+{name}" for name in FEATURES.split()),
        "NUMBA_CACHE_DIR": str(cache),
        "PYTHONSAFEPATH": "1",
    }
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
