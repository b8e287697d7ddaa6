"""A server of the built-in model for all clients. It runs in the environment of the repository, .venv."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from recording import Recorded, recorded_requests

ROOT = Path(__file__).parents[2]
ARBORA = ROOT / ".venv" / "bin" / "arbora"
PATIENCE_S = 300
_ADDRESS = re.compile(r" at (http://\S+) on ")

os.environ |= {
    "OPENAI_API_KEY": "none",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "DO_NOT_TRACK": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the server."""
    yield from _serve(tmp_path_factory.mktemp("server"), "--max-model-len", "2048")


@pytest.fixture(scope="session")
def roomy_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server whose model takes the long prompts of coding agents, untrained for them."""
    model = tmp_path_factory.mktemp("roomy") / "arbora-builtin"
    shutil.copytree(ROOT / "runtime" / "model" / "builtin", model, ignore=shutil.ignore_patterns("*.py*"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 65536}))
    yield from _serve(tmp_path_factory.mktemp("roomy_server"), str(model))


def _serve(folder: Path, *arguments: str) -> Iterator[str]:
    log = folder / "log"
    options = ["--port", "0", "--data-dir", str(folder / "data"), "--kv-memory", "128MiB"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [ARBORA, "serve", *arguments, *options],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={name: text for name, text in os.environ.items() if name != "VIRTUAL_ENV"},
        )
    try:
        yield _address(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and process.poll() is None:
        if found := _ADDRESS.search(log.read_text(errors="replace")):
            return found[1]
        time.sleep(0.1)
    pytest.exit(f"the server did not start:\n{log.read_text(errors='replace')[-4000:]}", 1)


@pytest.fixture(scope="session")
def v1(url: str) -> str:
    """The base URL of OpenAI's API."""
    return f"{url}/v1"


@pytest.fixture
def recorded(url: str) -> Iterator[Recorded]:
    """The same server behind a proxy that records requests."""
    with recorded_requests(url) as recorded:
        yield recorded
