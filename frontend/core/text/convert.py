"""Converts tokenizers in older formats with transformers, in a child process that then exits."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ....runtime.errors import ConfigError

_SCRIPT = """
import sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True)
tokenizer.backend_tokenizer.save(sys.argv[2])
"""


def converted_tokenizer(directory: Path) -> str:
    """The text of the tokenizer.json that transformers makes from the files in `directory`."""
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError(
            f"{directory} has no tokenizer.json, and converting its tokenizer needs transformers: "
            f"run `{sys.executable} -m pip install transformers`, or choose a model with a tokenizer.json."
        )
    with tempfile.TemporaryDirectory(prefix="arbora-convert-") as scratch:
        path = Path(scratch) / "tokenizer.json"
        child = subprocess.run(
            [sys.executable, "-c", _SCRIPT, str(directory), str(path)],
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if child.returncode != 0 or not path.is_file():
            reason = (child.stderr.strip().splitlines() or ["no message"])[-1]
            raise ConfigError(
                f"{directory} has no tokenizer.json, and transformers can't convert its tokenizer: {reason}"
            )
        return path.read_text("utf-8")
