"""Machine code from numba's cache, in processes of their own: a process keeps what it has imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import ctypes, json, sys

import numpy as np
from arbora.runtime.loaded_code import cached_cfunc, cached_njit
from numba import types


def sorted_squares(count):
    values = np.empty(count)  # needs numba's memory functions
    for i in range(count):
        values[i] = (i - 2) ** 2
    return np.sort(values)


def power(x):
    return np.exp(x) + 1


squares = cached_njit(sorted_squares, nogil=True)
exponential = cached_cfunc(power, types.float64(types.float64), error_model="numpy")
call = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(exponential.address)
print(json.dumps({
    "squares": squares(4).tolist(),
    "power": call(0.0),
    "loaded": sum(squares.stats.cache_hits.values()) + exponential.cache_hits,
    "imported": "numba.np.linalg" in sys.modules,
}))
"""


def run(*program: str | Path, cache: Path) -> dict[str, Any]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run([sys.executable, *program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result.pop("squares") == [0.0, 1.0, 1.0, 4.0]
    assert result.pop("power") == pytest.approx(2.0)
    return result


def test_loading_code_does_not_import_what_compiling_needs(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    assert run(program, cache=tmp_path) == {"loaded": 0, "imported": True}
    assert run(program, cache=tmp_path) == {"loaded": 2, "imported": False}


def test_a_function_without_a_file_is_compiled_in_each_process(tmp_path: Path) -> None:
    for _ in range(2):
        assert run("-c", PROGRAM, cache=tmp_path) == {"loaded": 0, "imported": True}
