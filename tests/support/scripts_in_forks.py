"""Runs Python scripts, each in a fork of one process that has imported what takes most of their start.

python scripts_in_forks.py SCRIPT… prints as JSON, by script, how its --help ends: status, stdout and stderr.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from tempfile import TemporaryFile

import arbora.kernels
import torch

PRELOADED = (torch, arbora.kernels)


def main(scripts: list[str]) -> None:
    print(json.dumps({script: _help_of(script) for script in scripts}))


def _help_of(script: str) -> tuple[int, str, str]:
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        pid = os.fork()
        if pid == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            _become(script)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0)
        err.seek(0)
        return status, out.read(), err.read()


def _become(script: str) -> None:
    sys.argv = [script, "--help"]
    status: object = 1
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ending:
        status = ending.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else 1)


if __name__ == "__main__":
    main([str(Path(script)) for script in sys.argv[1:]])
