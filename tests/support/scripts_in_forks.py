"""Shows the help of Python scripts, each in a fork of one process.

That process has already imported torch and numba, which take most of the start of many scripts.
`python scripts_in_forks.py SCRIPT…` prints a JSON object with the exit status, stdout and stderr of each.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import sys
from tempfile import TemporaryFile

import arbora.kernels  # noqa: F401
import torch  # noqa: F401

FORKS = multiprocessing.get_context("fork")


def help_of(script: str) -> tuple[int | None, str, str]:
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        process = FORKS.Process(target=_show_help, args=(script, out.fileno(), err.fileno()))
        process.start()
        process.join()
        out.seek(0)
        err.seek(0)
        return process.exitcode, out.read(), err.read()


def _show_help(script: str, out: int, err: int) -> None:
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.argv = [script, "--help"]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    print(json.dumps({script: help_of(script) for script in sys.argv[1:]}))
