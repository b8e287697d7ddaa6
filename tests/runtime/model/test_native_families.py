"""Every family of our own code against transformers in float32, in whole prompts, chunks and mixed steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from arbora.runtime.model.decoder import Decoder
from paged_rows import PagedRows, differences
from step_driver import StepDriver
from tiny_models import tiny_config, tiny_model

TOLERANCE = 5e-5
"""of the largest logit"""
_TWO_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("gemma", {}),
    "gemma2": (
        "gemma2",
        {"query_pre_attn_scalar": 9, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0},
    ),
    "gemma2 without caps": ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3": ("gemma3_text", {"query_pre_attn_scalar": 9, "rope_parameters": _TWO_ROPES}),
    "gemma3 with biases and capped logits": (
        "gemma3_text",
        {"attention_bias": True, "final_logit_softcapping": 5.0},
    ),
    "granite": (
        "granite",
        {
            "attention_multiplier": 0.3,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.7,
            "logits_scaling": 3.0,
        },
    ),
    "phi3 with a window": ("phi3", {"sliding_window": 8}),
    "phi3 with part of each head rotated": (
        "phi3",
        {
            "sliding_window": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
        },
    ),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1, 0]}),
    "smollm3 with windows": (
        "smollm3",
        {
            "no_rope_layers": [1, 0, 1, 1],
            "use_sliding_window": True,
            "sliding_window": 8,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
        },
    ),
}


def save_tiny(model_type: str, fields: dict[str, Any], directory: Path) -> Any:
    config = tiny_config(model_type)
    config.update(fields)
    original = tiny_model(config)
    original.save_pretrained(directory)
    return original


def load(directory: Path) -> Decoder:
    model = StepDriver.load(directory, model_impl="native").runner._model
    assert isinstance(model, Decoder)
    return model


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(case: str, tmp_path: Path) -> None:
    original = save_tiny(*CASES[case], tmp_path)
    assert max(differences(original, PagedRows(load(tmp_path)))) < TOLERANCE
