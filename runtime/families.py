"""The supported model families and their differences. One decoder serves all."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from .checkpoint_json import CONFIG_FILE, read_config
from .errors import ConfigError


class ExpertFamily(NamedTuple):
    """The experts of a family's layers, and their names in checkpoints within a layer."""

    router: str
    experts: str
    """followed by an expert's number and one of `parts`"""
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    renormalizes: bool = False
    """whether the shares of a token's experts always sum to 1; otherwise `norm_topk_prob` in config.json decides"""
    biased: bool = False
    """whether the router and the experts have biases"""
    clamps: bool = False
    """whether the activation is `clamp_and_gate`, otherwise SiLU"""


class Family(NamedTuple):
    """What distinguishes one family. A bias of None: `attention_bias` in config.json decides."""

    qkv_bias: bool | None
    output_bias: bool | None
    qk_norm: bool
    window: Literal["never", "all layers", "by layer"]
    experts: ExpertFamily | None = None
    """of all layers, or of those that config.json names; None: no layer has any"""


FAMILIES = {
    "LlamaForCausalLM": Family(None, None, False, "never"),
    "MistralForCausalLM": Family(False, False, False, "all layers"),
    "MixtralForCausalLM": Family(
        False,
        False,
        False,
        "all layers",
        ExpertFamily(
            "block_sparse_moe.gate", "block_sparse_moe.experts", ("w1", "w3", "w2"), renormalizes=True
        ),
    ),
    "Qwen2ForCausalLM": Family(True, False, False, "by layer"),
    "Qwen3ForCausalLM": Family(None, None, True, "by layer"),
    "Qwen3MoeForCausalLM": Family(None, None, True, "by layer", ExpertFamily("mlp.gate", "mlp.experts")),
}


class _Names(msgspec.Struct):
    architectures: list[str] | None = None
    model_type: str = "missing"


def is_known(model: Path) -> bool:
    """Whether the model is of one of `FAMILIES`."""
    return any(name in FAMILIES for name in read_config(model, _Names).architectures or ())


def family_of(model: Path) -> Family:
    """The family in `model`/config.json. Raises ConfigError, with the supported ones, for any other."""
    names = read_config(model, _Names)
    architecture = (names.architectures or [f"none (model_type {names.model_type})"])[0]
    if architecture not in FAMILIES:
        raise ConfigError(
            f"{model / CONFIG_FILE}: architecture {architecture} is not supported. "
            f"Supported: {', '.join(sorted(FAMILIES))}."
        )
    return FAMILIES[architecture]
