"""The help of `arbora serve`: examples, and the options in groups."""

from __future__ import annotations

import argparse
from typing import Any

from ...runtime.config import OPTIONS
from ...runtime.option_values import Option

USAGE = "%(prog)s [MODEL] [OPTION ...]"
DESCRIPTION = """\
Start a server with OpenAI's, Anthropic's and Ollama's HTTP APIs and print its address when it is ready.

examples:
  arbora serve qwen3:0.6b
  arbora serve qwen3:0.6b --also-serve smollm2 coder=./coder.gguf --keep-alive 10m
  arbora serve ./model.Q4_K_M.gguf --host 0.0.0.0 --api-key @keys --disk-cache ./prefixes"""
EPILOG = """\
Every option can be set by a variable too: --max-model-len by ARBORA_MAX_MODEL_LEN, and so on.
docs/command_line.md tells more of the options."""
GROUPS = {
    "model": (
        "also_serve",
        "keep_alive",
        "served_model_name",
        "any_model_name",
        "chat_template",
        "max_model_len",
        "quantize",
        "dtype",
        "device",
        "model_impl",
        "runner",
    ),
    "address and keys": (
        "host",
        "port",
        "ssl_certfile",
        "api_key",
        "isolate",
        "allowed_origin",
        "api_workers",
    ),
    "memory and cache": (
        "kv_memory",
        "kv_dtype",
        "pin_memory",
        "host_cache",
        "disk_cache",
        "remote_cache",
        "write_policy",
        "prefill_at",
        "prefill_from",
        "prompt_rules",
        "packed_weights",
        "data_dir",
    ),
    "limits and scheduling": (
        "replicas",
        "tp",
        "max_running",
        "max_waiting",
        "request_timeout",
        "step_ms",
        "speculate",
        "deterministic",
        "request_defaults",
    ),
    "adapters": ("lora", "max_loras", "max_lora_rank"),
    "gateways": ("kv_events", "vllm_metrics"),
    "logs and debugging": (
        "quiet",
        "log_level",
        "log_requests",
        "record_steps",
        "otlp_traces_endpoint",
        "debug",
    ),
}
"""The names of the options by group, both in the order of the help."""


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(fail=parser.error, flags=[option.flag for option in OPTIONS])
    by_name = {option.name: option for option in OPTIONS}
    for title, names in GROUPS.items():
        group = parser.add_argument_group(title)
        if title == "model":
            group.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
        for name in names:
            group.add_argument(by_name[name].flag, help=by_name[name].full_help, **_form(by_name[name]))


MODEL_HELP = (
    "a well-known name such as qwen3:0.6b (`arbora models` lists them), a hub id such as Qwen/Qwen3-0.6B or "
    "OWNER/NAME:Q4_K_M, a GGUF file, or a directory with config.json (default: the built-in model)"
)


def _form(option: Option) -> dict[str, Any]:
    """How argparse reads the option's values."""
    if not option.metavar:
        return {"action": "store_const", "const": "1"}
    form: dict[str, Any] = {"metavar": option.metavar}
    if option.is_repeatable:
        return form | {"action": "extend", "nargs": "+" if option.takes_several else 1}
    return form | ({"nargs": "?", "const": option.alone} if option.alone else {})
