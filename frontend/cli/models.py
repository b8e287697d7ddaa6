"""`arbora models`: the well-known models, and which of them fit this machine's memory."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ...runtime.byte_sizes import in_units
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
CPU_GB = 3.0
"""the download of the largest model that is suggested for a CPU, which reads it for each token"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def run(parsed: argparse.Namespace) -> int:
    device = visible_device()
    free = _free_memory(device)
    suggested = suggest(KNOWN_MODELS, free, device)
    if parsed.json:
        print_json(
            {
                "device": device,
                "free_bytes": free,
                "suggested": None if suggested is None else suggested.name,
                "models": [{**model._asdict(), "fits": fits(model, free)} for model in KNOWN_MODELS],
            }
        )
        return 0
    heads = ("model", "download", "memory", "fits", "good for", "license")
    rows = [
        (
            model.name,
            f"~{model.download_gb:.2g} GB",
            f"~{model.memory_gb:.2g} GB",
            "yes" if fits(model, free) else "no",
            model.use,
            model.license,
        )
        for model in KNOWN_MODELS
    ]
    print_columns(heads, rows)
    place = "the GPU" if device == "cuda" else "this machine"
    print(f"sizes are approximate; {in_units(free)} of {place}'s memory are free")
    if suggested is None:
        print(f"none fits: `{program_name()} serve` alone serves the built-in model, a toy")
    else:
        print(f"for this machine: `{program_name()} serve {suggested.name}`")
    return 0


def fits(model: KnownModel, free: int) -> bool:
    return model.memory_gb * 1e9 <= free


def suggest(models: Sequence[KnownModel], free: int, device: str) -> KnownModel | None:
    """The model with the largest download that makes text and fits; on a CPU of at most `CPU_GB`."""
    fitting = [
        model
        for model in models
        if model.makes_text and fits(model, free) and (device == "cuda" or model.download_gb <= CPU_GB)
    ]
    return max(fitting, key=lambda model: model.download_gb, default=None)


def _free_memory(device: str) -> int:
    if device == "cuda":
        import torch

        if torch.cuda.is_available():
            return torch.cuda.mem_get_info()[0]
    return free_host_memory()
