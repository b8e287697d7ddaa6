"""`arbora models`: the well-known models, which of them fit this machine, and how fast they can be."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ...runtime.byte_sizes import in_units
from ...runtime.system_cores import count_usable_cores
from ...runtime.system_memory import free_host_memory
from ..launch.options import visible_device
from ..launch.program_name import program_name
from ..model_files.known_models import KNOWN_MODELS, KnownModel
from .output import JSON_HELP, print_columns, print_json

DESCRIPTION = (
    "List the models that have a short name, with the approximate size of the download and the memory that\n"
    "they need, and suggest one for this machine. Every other model of the hub has a name too: OWNER/NAME."
)
EXAMPLE = "arbora models"
MIN_SPEED = 8.0
"""A model that is suggested for a CPU makes at least this many tokens per second, about as fast as people
read."""
_SHARE_REACHED = 0.7
"""the share of the memory's rate at which a step of one request reads the weights"""
_TRIES = 10
_MEASURED_BYTES = 64 << 20  # read by each thread, more than the caches hold


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def run(parsed: argparse.Namespace) -> int:
    device = visible_device()
    free = _free_memory(device)
    rate = None if device == "cuda" else measure_memory_rate()
    suggested = suggest(KNOWN_MODELS, free, rate)
    if parsed.json:
        print_json(
            {
                "device": device,
                "free_bytes": free,
                "suggested": None if suggested is None else suggested.name,
                "models": [
                    {
                        **model._asdict(),
                        "fits": fits(model, free),
                        "tokens_per_s": None if rate is None else round(estimate_speed(model, rate), 1),
                    }
                    for model in KNOWN_MODELS
                ],
            }
        )
        return 0
    heads = ("model", "download", "memory", "fits", "tokens/s", "good for", "license")
    rows = [
        (
            model.name,
            f"~{model.download_gb:.2g} GB",
            f"~{model.memory_gb:.2g} GB",
            "yes" if fits(model, free) else "no",
            f"~{estimate_speed(model, rate):.2g}" if rate is not None and model.makes_text else "-",
            model.use,
            model.license,
        )
        for model in KNOWN_MODELS
    ]
    print_columns(heads, rows)
    place = "the GPU" if device == "cuda" else "this machine"
    print(f"sizes are approximate; {in_units(free)} of {place}'s memory are free")
    if rate is not None:
        print(
            f"tokens/s: of one reply, estimated from the {rate / 1e9:.0f} GB/s at which memory was read now"
        )
    if suggested is None:
        print(f"none fits: `{program_name()} serve` alone serves the built-in model, a toy")
    else:
        print(f"for this machine: `{program_name()} serve {suggested.name}`")
    return 0


def fits(model: KnownModel, free: int) -> bool:
    return model.memory_gb * 1e9 <= free


def estimate_speed(model: KnownModel, rate: float) -> float:
    """Tokens per second of one request on a CPU, which reads the weights for each token at `rate` bytes/s."""
    return _SHARE_REACHED * rate / (model.download_gb * 1e9 * model.share_read)


def suggest(models: Sequence[KnownModel], free: int, rate: float | None) -> KnownModel | None:
    """The largest model that makes text and fits. On a CPU, which reads memory at `rate` bytes/s, it also
    reaches `MIN_SPEED`; if none does, the fastest one."""
    fitting = [model for model in models if model.makes_text and fits(model, free)]
    if rate is None:
        return max(fitting, key=lambda model: model.download_gb, default=None)
    fast = [model for model in fitting if estimate_speed(model, rate) >= MIN_SPEED]
    return max(
        fast or fitting,
        key=lambda model: model.download_gb if fast else estimate_speed(model, rate),
        default=None,
    )


def measure_memory_rate() -> float:
    """The bytes per second at which all usable cores together read memory: the best of several tries, as
    other programs may read too."""
    threads = count_usable_cores()
    with ThreadPoolExecutor(threads) as pool:
        parts = [*pool.map(lambda _: np.ones(_MEASURED_BYTES // 8, np.int64), range(threads))]
        seconds = []
        for _ in range(_TRIES):
            started = time.perf_counter()
            list(pool.map(np.max, parts))
            seconds.append(time.perf_counter() - started)
    return threads * _MEASURED_BYTES / min(seconds)


def _free_memory(device: str) -> int:
    if device == "cuda":
        import torch

        if torch.cuda.is_available():
            return torch.cuda.mem_get_info()[0]
    return free_host_memory()
