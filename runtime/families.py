"""The supported model families and their differences. One decoder serves all."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from .checkpoint_json import CONFIG_FILE, read_config
from .errors import ConfigError


class Family(NamedTuple):
    """What distinguishes one family. A bias of None: `attention_bias` in config.json decides."""

    qkv_bias: bool | None
    output_bias: bool | None
    qk_norm: bool
    window: Literal["never", "all layers", "by layer"]


FAMILIES = {
    "LlamaForCausalLM": Family(None, None, False, "never"),
    "MistralForCausalLM": Family(False, False, False, "all layers"),
    "Qwen2ForCausalLM": Family(True, False, False, "by layer"),
    "Qwen3ForCausalLM": Family(None, None, True, "by layer"),
}


GENERATES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
"""ends of the names of architectures that continue a text"""
CLASSIFIES = "ForSequenceClassification"


def find_stem(architecture: str) -> str:
    """The name that the architectures of one model for different tasks share."""
    for end in (*GENERATES, CLASSIFIES, "Model"):
        architecture = architecture.removesuffix(end)
    return architecture


_STEMS = {find_stem(name): family for name, family in FAMILIES.items()}


class _Names(msgspec.Struct):
    architectures: list[str] | None = None
    model_type: str = "missing"


def is_known(model: Path) -> bool:
    """Whether the model is of one of `FAMILIES`."""
    return any(name in FAMILIES for name in read_config(model, _Names).architectures or ())


def family_of(model: Path, pools: bool = False) -> Family:
    """The family in `model`/config.json. Raises ConfigError, with the supported ones, for any other. pools:
    the architecture may be one without the head that predicts tokens"""
    names = read_config(model, _Names)
    architecture = (names.architectures or [f"none (model_type {names.model_type})"])[0]
    if pools and find_stem(architecture) in _STEMS:
        return _STEMS[find_stem(architecture)]
    if architecture not in FAMILIES:
        raise ConfigError(
            f"{model / CONFIG_FILE}: architecture {architecture} is not supported. "
            f"Supported: {', '.join(sorted(FAMILIES))}."
        )
    return FAMILIES[architecture]
