"""Random LoRA adapters in PEFT's format, and what they make of a model's weights."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def save_adapter(
    directory: Path,
    model: PreTrainedModel,
    seed: int = 0,
    rank: int = 4,
    targets: Sequence[str] = ALL,
    size: float = 0.3,
    ranks: dict[str, int] | None = None,
    **config: Any,
) -> Path:
    """Writes an adapter whose matrices are random. `ranks`: those of modules with these names. `config`: more
    fields of adapter_config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        kind = name.rpartition(".")[2]
        if kind not in targets or not isinstance(module, torch.nn.Linear):
            continue
        r = (ranks or {}).get(kind, rank)
        prefix = f"base_model.model.{name}"
        a = torch.randn(r, module.in_features, generator=generator) / module.in_features**0.5
        b = torch.randn(module.out_features, r, generator=generator) * size / r**0.5
        tensors |= {f"{prefix}.lora_A.weight": a, f"{prefix}.lora_B.weight": b}
    save_file(tensors, directory / "adapter_model.safetensors")
    fields: dict[str, Any] = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(targets),
        "rank_pattern": ranks or {},
        "bias": "none",
    }
    (directory / "adapter_config.json").write_text(json.dumps(fields | config))
    return directory


def edit_adapter(directory: Path, **fields: Any) -> None:
    path = directory / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def merge(model: PreTrainedModel, directory: Path, scales: dict[str, float] | None = None) -> PreTrainedModel:
    """The model with the adapter in its weights: W + scale · B A, in float32. `scales`: those of modules with
    these names; the default is lora_alpha / r."""
    merged = copy.deepcopy(model)
    config = json.loads((directory / "adapter_config.json").read_text())
    tensors = load_file(directory / "adapter_model.safetensors")
    with torch.no_grad():
        for name, a in tensors.items():
            if ".lora_A." not in name:
                continue
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            b = tensors[name.replace("lora_A", "lora_B")]
            scale = (scales or {}).get(module.rpartition(".")[2], config["lora_alpha"] / config["r"])
            merged.get_parameter(f"{module}.weight").add_(scale * (b @ a))
    return merged
