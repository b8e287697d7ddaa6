"""A real server: `arbora serve` with all its processes, on a free port, and clients of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
from certificates import client_context
from processes import children_of, command_line
from prometheus_client.parser import text_string_to_metric_families
from safetensors.numpy import load_file, save_file
from tiny_checkpoint import write_tiny_checkpoint

CONTEXT = 4096
HELLO: Any = [{"role": "user", "content": "Hello, how are you today?"}]
PATIENCE = 120.0  # seconds: a guard against waiting for ever, also where all is slow
TEMPLATE = Path(__file__).parents[2] / "bench/train_builtin/chat_template.jinja"
PATIENT = str(Path(__file__).with_name("patient_server.py"))
"""a program for `serve`, for tests that load the server so much that its watchdog may report it"""
_ADDRESS = re.compile(r" at (https?://\S+|unix:\S+) on ")


class Served:
    """`client` is OpenAI's own (not for a Unix socket), `http` a plain one. `children` maps a role to its
    process id."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: list[str], key: str) -> None:
        self.process = process
        self.url = url
        self.log = log
        uds = url.removeprefix("unix:") if url.startswith("unix:") else None
        base = url if uds is None else "http://localhost"
        trusted = client_context()
        transport = httpx.HTTPTransport(verify=trusted, uds=uds)
        self.http = httpx.Client(base_url=base, timeout=PATIENCE, transport=transport)
        self.client = openai.OpenAI(
            base_url=f"{base}/v1",
            api_key=key,
            max_retries=0,
            timeout=PATIENCE,
            http_client=openai.DefaultHttpxClient(verify=trusted),
        )
        listed = self.http.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).json()
        self.model: str = listed["data"][0]["id"]

    def async_client(self) -> openai.AsyncOpenAI:
        """OpenAI's asynchronous client of the server. Many requests at once may take long to connect."""
        return openai.AsyncOpenAI(
            base_url=self.client.base_url, api_key=self.client.api_key, max_retries=0, timeout=PATIENCE
        )

    def metrics(self) -> dict[str, float]:
        """Samples without labels by name, those with labels summed."""
        totals: dict[str, float] = {}
        for family in text_string_to_metric_families(self.http.get("/metrics").text):
            for sample in family.samples:
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
        return totals

    def token_ids(self, text: str) -> list[int]:
        body = {"prompt": text, "add_special_tokens": False}
        tokens: list[int] = self.http.post("/tokenize", json=body).json()["tokens"]
        return tokens

    @property
    def children(self) -> dict[str, int]:
        found = {}
        for pid in children_of(self.process.pid):
            command = command_line(pid)
            for role, module in (("tokenizer", "app"), ("scheduler", "scheduler"), ("model", "model")):
                if any(part.endswith((f"{module}.process", f"loops_on_demand.{role}")) for part in command):
                    found[role] = pid
        return found

    @property
    def is_healthy(self) -> bool:
        """False also while a new process takes over the connections."""
        try:
            return self.http.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    @property
    def running(self) -> int:
        """How many requests generate; 0 too before the scheduler has answered."""
        return int(self.metrics().get("arbora_requests_running", 0))

    @property
    def is_quiet(self) -> bool:
        """Whether no request runs or waits, and none holds a page."""
        metrics = self.metrics()
        names = ("arbora_requests_running", "arbora_requests_waiting", "arbora_kv_pages_used")
        return all(metrics.get(name) == 0 for name in names)

    def close(self) -> None:
        self.client.close()
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()


def text_of(completion: Any) -> str:
    """The text of a chat completion."""
    text: str = completion.choices[0].message.content
    return text


def eventually(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.02)


def write_served_checkpoint(directory: Path, context: int = CONTEXT) -> Path:
    """The tiny random model with a template that knows tools, and no ids beyond its tokenizer's."""
    write_tiny_checkpoint(directory)
    vocab_size = len(json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"])
    weights = load_file(directory / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = weights[name][:vocab_size]
    save_file(weights, directory / "model.safetensors")
    _edit_json(directory / "config.json", vocab_size=vocab_size, max_position_embeddings=context)
    _edit_json(directory / "tokenizer_config.json", chat_template=TEMPLATE.read_text())
    return directory


@contextlib.contextmanager
def serve(
    model: Path,
    *flags: str,
    key: str = "none",
    home: Path | None = None,
    program: Sequence[str] = ("-m", "arbora"),
    uds: Path | None = None,
) -> Iterator[Served]:
    """`home` is where the server's private directory goes. With `uds` it listens on a Unix socket there."""
    address = ["--port", "0"] if uds is None else ["--host", f"unix:{uds}"]
    command = [sys.executable, *program, "serve", str(model), *address, "--dtype", "float32"]
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment["TMPDIR"] = str(home or tempfile.gettempdir())
    process = subprocess.Popen(
        [*command, "--debug", "invariants", "--kv-memory", "4MiB", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    log: list[str] = []
    reader = threading.Thread(target=_read_log, args=(process, log), daemon=True)
    reader.start()
    try:
        served = Served(process, _address(process, log), log, key)
    except BaseException:
        process.kill()
        raise
    try:
        yield served
    finally:
        served.close()


def _read_log(process: subprocess.Popen[str], log: list[str]) -> None:
    assert process.stdout is not None
    log.extend(iter(process.stdout.readline, ""))


def _address(process: subprocess.Popen[str], log: list[str]) -> str:
    eventually(lambda: bool(_ADDRESS.search("".join(log))) or process.poll() is not None)
    found = _ADDRESS.search("".join(log))
    assert found is not None, "".join(log)
    return found[1]


def _edit_json(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
