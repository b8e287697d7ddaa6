"""Llama 4: positions that scale queries, and experts that only their own tokens go through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from arbora.kernels.experts import Experts, Routing
from arbora.runtime.model.transformers_models.architecture import _Loading
from arbora.runtime.model.transformers_models.model import TransformersModel
from paged_rows import OTHER, PROMPT, PagedRows
from safetensors.torch import load_file, save_file
from step_driver import StepDriver
from tiny_models import tiny_config, tiny_model
from transformers import AutoConfig, PreTrainedModel

FIELDS: dict[str, Any] = {
    **dict.fromkeys(("layer_types", "moe_layers", "no_rope_layers")),
    "interleave_moe_layer_step": 2,
    "floor_scale": 4,
    "attn_scale": 1.0,
}


@pytest.fixture
def original(tmp_path: Path) -> PreTrainedModel:
    """A random model with dense layers and layers of experts, saved in `tmp_path`. Queries of its last layer
    are scaled anew every four positions."""
    config = tiny_config("llama4_text")
    model = tiny_model(AutoConfig.for_model(**{**config.to_dict(), **FIELDS}))
    model.save_pretrained(tmp_path)
    return model


@torch.no_grad()
def expect_logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


def load(directory: Path) -> TransformersModel:
    loaded = StepDriver.load(directory).runner._model
    assert isinstance(loaded, TransformersModel)
    return loaded


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-4


def test_queries_are_scaled_by_positions_in_their_rows(original: PreTrainedModel, tmp_path: Path) -> None:
    """And not by their places in the step."""
    rows = PagedRows(load(tmp_path))
    steps = [rows.run((0, PROMPT[:20])), rows.run((1, OTHER), (0, PROMPT[20:36])), rows.run((0, PROMPT[36:]))]
    found = torch.cat([steps[0][0], steps[1][1], steps[2][0]])
    assert_equal(found, expect_logits(original, PROMPT))
    assert_equal(steps[1][0], expect_logits(original, OTHER))


def test_a_token_goes_only_through_its_experts(
    original: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    routings: list[torch.Tensor] = []
    run = Experts.__call__

    def record(experts: Experts, x: torch.Tensor, routing: Routing) -> torch.Tensor:
        routings.append(routing.experts)
        return run(experts, x, routing)

    rows = PagedRows(load(tmp_path))
    monkeypatch.setattr(Experts, "__call__", record)
    rows.run((0, PROMPT[:3]))
    per_token = original.config.num_experts_per_tok
    assert [each.shape for each in routings] == [(3 * per_token, 1)] * 2


@pytest.mark.parametrize("are_stacked", [False, True])
def test_experts_that_are_stored_one_by_one_are_read(
    original: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, are_stacked: bool
) -> None:
    """As quantized checkpoints have them. A GPU stacks those in 16 or 32 bits."""
    if are_stacked:
        monkeypatch.setattr(_Loading, "_has_products", lambda *_: False)
    file = tmp_path / "model.safetensors"
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(file).items():
        place, _, part = name.rpartition(".")
        if not place.endswith(".experts"):
            tensors[name] = tensor
            continue
        for expert, weight in enumerate(tensor):
            halves = weight.T.chunk(2) if part == "gate_up_proj" else (weight.T,)
            parts = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
            for each, matrix in zip(parts, halves, strict=True):
                tensors[f"{place}.{expert}.{each}.weight"] = matrix.contiguous()
    save_file(tensors, file, {"format": "pt"})
    (found,) = PagedRows(load(tmp_path)).run((0, PROMPT))
    assert_equal(found, expect_logits(original, PROMPT))
