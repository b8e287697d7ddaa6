"""What is read of PEFT's adapters, and which are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from arbora.runtime.errors import ConfigError
from arbora.runtime.model.adapters.peft_checkpoint import Shape, hash_adapter, read_adapter
from arbora.runtime.model.adapters.peft_config import PeftConfig
from checkpoints import random_model
from lora import ALL, edit_adapter, save_adapter
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

WEIGHTS = "adapter_model.safetensors"
FIRST = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def base() -> PreTrainedModel:
    return random_model("llama", num_hidden_layers=2)


@pytest.fixture
def adapter(base: PreTrainedModel, tmp_path: Path) -> Path:
    return save_adapter(tmp_path / "adapter", base, targets=("q_proj", "v_proj"))


def modules(base: PreTrainedModel) -> dict[str, Shape]:
    return {
        name: Shape(*module.weight.shape)
        for name, module in base.named_modules()
        if isinstance(module, torch.nn.Linear) and name.endswith(ALL)
    }


def refusal(base: PreTrainedModel, adapter: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        read_adapter(adapter, modules(base), max_rank=16)
    return str(refused.value)


def test_matrices_have_the_names_of_their_modules(base: PreTrainedModel, adapter: Path) -> None:
    matrices = read_adapter(adapter, modules(base), max_rank=4)
    assert set(matrices) == {
        f"model.layers.{layer}.self_attn.{kind}_proj" for layer in (0, 1) for kind in "qv"
    }
    first = matrices["model.layers.0.self_attn.q_proj"]
    assert first.scale == 2.0 and torch.equal(
        first.down, load_file(adapter / WEIGHTS)[f"{FIRST}.lora_A.weight"]
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is IA3, but only LORA is served"),
        ({"use_dora": True}, "DoRA is not served"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"lora_bias": True}, "lora_bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save has lm_head"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "mlp.experts.gate_up_proj"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"alora_invocation_tokens": [1]}, "activated LoRA"),
        ({"init_lora_weights": "pissa_niter_4"}, "path_initial_model_for_weight_conversion"),
        ({"r": 0}, "must be at least 1"),
        ({"r": 8}, "expected [8, 64] of F32, F16, BF16, got [4, 64] of F32"),
        ({"r": "8"}, "r"),
        ({"target_modules": ["q_proj"]}, "v_proj, which target_modules of adapter_config.json does not name"),
        ({"target_modules": ["q_proj", "v_proj", "o_proj"]}, "o_proj are missing"),
        ({"r": 32}, "is 32, but may be at most 16: raise --max-lora-rank, up to 256"),
    ],
)
def test_a_config_that_can_not_be_served_is_refused_by_name(
    base: PreTrainedModel, adapter: Path, fields: dict[str, object], message: str
) -> None:
    edit_adapter(adapter, **fields)
    assert message in refusal(base, adapter)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("base_model.model.lm_head.lora_A.weight", "adapters of the head are not served"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", "adapted embeddings are not served"),
        ("base_model.model.model.layers.0.mlp.experts.0.up_proj.lora_A.weight", "experts are not served"),
        ("base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight", "has no such module"),
        (f"{FIRST}.lora_magnitude_vector", "belongs to DoRA"),
        ("base_model.model.lm_head.weight", "is no matrix A or B of a linear module"),
    ],
)
def test_a_tensor_that_can_not_be_served_is_named(
    base: PreTrainedModel, adapter: Path, name: str, message: str
) -> None:
    save_file({**load_file(adapter / WEIGHTS), name: torch.ones(4, 64)}, adapter / WEIGHTS)
    problem = refusal(base, adapter)
    assert message in problem and (
        name in problem or re.sub(r"base_model.model.|.lora_.*", "", name) in problem
    )


def _remove(name: str) -> Callable[[Path], None]:
    def change(adapter: Path) -> None:
        tensors = load_file(adapter / WEIGHTS)
        del tensors[name]
        save_file(tensors, adapter / WEIGHTS)

    return change


def _set_nan(adapter: Path) -> None:
    tensors = load_file(adapter / WEIGHTS)
    tensors[f"{FIRST}.lora_B.weight"][0, 0] = torch.nan
    save_file(tensors, adapter / WEIGHTS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_remove(f"{FIRST}.lora_B.weight"), "matrix B of model.layers.0.self_attn.q_proj is missing"),
        (_set_nan, "lora_B.weight has values that are NaN or infinite"),
        (
            lambda adapter: (adapter / WEIGHTS).rename(adapter / "adapter_model.bin"),
            "safe_serialization=True",
        ),
        (lambda adapter: (adapter / WEIGHTS).unlink(), f"{WEIGHTS} is missing"),
        (lambda adapter: (adapter / WEIGHTS).write_bytes(b"{}"), "not a whole safetensors file"),
        (lambda adapter: (adapter / "adapter_config.json").unlink(), "adapter_config.json: can't be read"),
    ],
)
def test_damaged_files_are_refused(
    base: PreTrainedModel, adapter: Path, change: Callable[[Path], object], message: str
) -> None:
    change(adapter)
    assert message in refusal(base, adapter)


def test_the_digest_changes_with_the_weights_and_with_the_config(adapter: Path) -> None:
    digests = [hash_adapter(adapter)]
    edit_adapter(adapter, lora_alpha=5)
    digests.append(hash_adapter(adapter))
    save_file({**load_file(adapter / WEIGHTS), "more": torch.ones(1)}, adapter / WEIGHTS)
    digests.append(hash_adapter(adapter))
    assert len(set(digests)) == 3


@pytest.mark.parametrize(
    ("fields", "targeted"),
    [
        ({"target_modules": ["q_proj"]}, {"layers.0.attn.q_proj", "layers.1.attn.q_proj"}),
        ({"target_modules": r".*layers\.1\..*(q|up)_proj"}, {"layers.1.attn.q_proj", "layers.1.mlp.up_proj"}),
        ({"target_modules": ["q_proj"], "layers_to_transform": [1]}, {"layers.1.attn.q_proj"}),
        (
            {"target_modules": ["up_proj"], "layers_to_transform": 0, "layers_pattern": "layers"},
            {"layers.0.mlp.up_proj"},
        ),
        ({"target_modules": ["q_proj"], "exclude_modules": r".*0\.attn.*"}, {"layers.1.attn.q_proj"}),
        (
            {"target_modules": "all-linear", "exclude_modules": ["q_proj"]},
            {"layers.0.mlp.up_proj", "layers.1.mlp.up_proj"},
        ),
    ],
)
def test_modules_are_targeted_as_peft_does_it(fields: dict[str, object], targeted: set[str]) -> None:
    config = PeftConfig("LORA", 4, 8, **fields)  # type: ignore[arg-type]
    names = [f"model.layers.{layer}.{kind}" for layer in (0, 1) for kind in ("attn.q_proj", "mlp.up_proj")]
    assert {name for name in names if config.targets(name)} == {f"model.{name}" for name in targeted}


def test_ranks_and_scales_follow_the_patterns() -> None:
    config = PeftConfig(
        "LORA", 4, 8, rank_pattern={"q_proj": 16, r"layers\.1\..*up": 2}, alpha_pattern={"up_proj": 3}
    )
    assert (config.rank("a.layers.0.q_proj"), config.scale("a.layers.0.q_proj")) == (16, 0.5)
    assert (config.rank("a.layers.1.mlp.up_proj"), config.scale("a.layers.0.up_proj")) == (4, 0.75)
    assert PeftConfig("LORA", 16, 8, use_rslora=True).scale("q_proj") == 2.0
