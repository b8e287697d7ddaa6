"""The commands that start the servers which `compare.py` compares."""

from __future__ import annotations

import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class ServerCommand(NamedTuple):
    """`arguments` lack the port: `--port N` is appended, which all of them understand."""

    name: str
    arguments: list[str]
    environment: Mapping[str, str] = {}


def arbora_server(options: Namespace, more: str) -> ServerCommand:
    """`more` are options of `arbora serve`, and first, if given, a model in place of the checkpoint."""
    words = shlex.split(more)
    model = str(options.checkpoint) if not words or words[0].startswith("-") else words.pop(0)
    command = [str(Path(sys.executable).with_name("arbora")), "serve", model]
    if "--dtype" not in words:
        command += ["--dtype", options.dtype]
    command += ["--max-model-len", str(options.max_model_len), "--kv-memory", f"{options.kv_gib}GiB", *words]
    other = [Path(model).name] if model != str(options.checkpoint) else []
    return ServerCommand(" ".join(["arbora", *other, *words]), command)


def vllm_server(options: Namespace) -> ServerCommand:
    """It writes JSON without white space, as Arbora does, so that tokens per second compare."""
    command = [str(options.vllm), "serve", str(options.checkpoint), "--host", "127.0.0.1"]
    command += ["--dtype", options.dtype, "--max-model-len", str(options.max_model_len)]
    command += ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    command += ["--structured-outputs-config", '{"disable_any_whitespace": true, "backend": "xgrammar"}']
    command += shlex.split(options.vllm_options)
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": str(options.kv_gib),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if options.preload:
        environment["LD_PRELOAD"] = ":".join(options.preload.split(","))
    return ServerCommand("vllm", command, environment)


def llama_server(options: Namespace, gguf: Path) -> ServerCommand:
    """A slot for each request in flight, each with the whole context, and its caches of prompts on."""
    command = [str(options.llama_server), "--model", str(gguf), "--host", "127.0.0.1", "--jinja"]
    command += ["--threads", str(options.threads), "--threads-batch", str(options.threads)]
    command += ["--parallel", str(options.in_flight)]
    command += ["--ctx-size", str(options.in_flight * options.max_model_len)]
    command += ["--cache-prompt", "--cache-reuse", str(LLAMA_CACHE_REUSE)]
    return ServerCommand(f"llama.cpp {gguf.stem}", [*command, *shlex.split(options.llama_options)])


LLAMA_CACHE_REUSE = 16
"""tokens; the shortest piece of an earlier prompt that it moves to another place"""


def servers(options: Namespace) -> list[ServerCommand]:
    """Arbora with each set of its options first, then the peers."""
    ours = [arbora_server(options, more) for more in options.arbora or [""]]
    vllm = [vllm_server(options)] if options.vllm else []
    return [*ours, *vllm, *(llama_server(options, gguf) for gguf in options.gguf)]
