"""The supported model families and their differences. One decoder serves all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from .checkpoint_json import CONFIG_FILE, read_config
from .errors import ConfigError

Norms = Literal["before", "around"]
"""where a layer normalises: the inputs of attention and of the feed-forward layer, or their outputs too"""


class ExpertFamily(NamedTuple):
    """The experts of a family's layers, and their names in checkpoints within a layer."""

    router: str
    experts: str
    """followed by an expert's number and one of `parts`"""
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    renormalizes: bool = False
    """whether the shares of a token's experts always sum to 1; otherwise `norm_topk_prob` in config.json
    decides"""
    biased: bool = False
    """whether the router and the experts have biases"""
    clamps: bool = False
    """whether the activation is `clamp_and_gate`, otherwise SiLU"""
    is_stacked: bool = False
    """whether one tensor has the matrices of all experts, with the outputs of gate and up in turn, and floats
    [inputs, outputs]"""


class Family(NamedTuple):
    """What distinguishes one family. A bias of None: `attention_bias` in config.json decides."""

    qkv_bias: bool | None = None
    output_bias: bool | None = None
    qk_norm: bool = False
    window: Literal["never", "all layers", "by layer"] = "never"
    full_period: int | None = None
    """by layer, without `layer_types`: each layer whose number is a multiple of it has full attention"""
    norms: Norms = "before"
    norm_offset: float | None = None
    """what is added to the weights of norms, which then multiply before anything is rounded. None: weights
    are as stored, and the normalised values are rounded first."""
    local_theta: float | None = None
    """the base of rotation in layers with a window, if it is another than that of the other layers"""
    scales_embedding: bool = False
    """by the square root of the hidden size"""
    is_fused: bool = False
    """whether checkpoints have one matrix for queries, keys and values, and one for gate and up"""
    has_sinks: bool = False
    """whether each head has a score that takes part in the softmax without a value"""
    experts: ExpertFamily | None = None
    """of all layers, or of those that config.json names; None: no layer has any"""
    defaults: Mapping[str, object] = {}
    """fields of config.json that the family's checkpoints may lack"""


_GEMMA: Mapping[str, object] = {
    "hidden_act": "gelu_pytorch_tanh",
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
_WINDOWED_GEMMA = {**_GEMMA, "query_pre_attn_scalar": 256, "sliding_window": 4096, "use_sliding_window": True}
_GRANITE: Mapping[str, object] = {"attention_multiplier": 1.0, "logits_scaling": 1.0}
_MIXTRAL = ExpertFamily(
    "block_sparse_moe.gate", "block_sparse_moe.experts", ("w1", "w3", "w2"), renormalizes=True
)
_GPT_OSS: Mapping[str, object] = {
    "head_dim": 64,
    "attention_bias": True,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150_000.0,
    "sliding_window": 128,
    "use_sliding_window": True,
    "num_experts_per_tok": 4,
}

FAMILIES = {
    "GemmaForCausalLM": Family(norm_offset=1.0, scales_embedding=True, defaults=_GEMMA),
    "Gemma2ForCausalLM": Family(
        window="by layer",
        full_period=2,
        norms="around",
        norm_offset=1.0,
        scales_embedding=True,
        defaults={**_WINDOWED_GEMMA, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0},
    ),
    "Gemma3ForCausalLM": Family(
        qk_norm=True,
        window="by layer",
        full_period=6,
        norms="around",
        norm_offset=1.0,
        local_theta=10_000.0,
        scales_embedding=True,
        defaults={**_WINDOWED_GEMMA, "max_position_embeddings": 131_072, "rope_theta": 1e6},
    ),
    "GptOssForCausalLM": Family(
        window="by layer",
        full_period=2,
        has_sinks=True,
        experts=ExpertFamily(
            "mlp.router", "mlp.experts", renormalizes=True, biased=True, clamps=True, is_stacked=True
        ),
        defaults=_GPT_OSS,
    ),
    "GraniteForCausalLM": Family(defaults=_GRANITE),
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(False, False, window="all layers"),
    "MixtralForCausalLM": Family(False, False, window="all layers", experts=_MIXTRAL),
    "Phi3ForCausalLM": Family(False, False, window="all layers", is_fused=True),
    "Qwen2ForCausalLM": Family(True, False, window="by layer"),
    "Qwen3ForCausalLM": Family(qk_norm=True, window="by layer"),
    "Qwen3MoeForCausalLM": Family(
        qk_norm=True, window="by layer", experts=ExpertFamily("mlp.gate", "mlp.experts")
    ),
    "SmolLM3ForCausalLM": Family(
        window="by layer",
        defaults={"rope_theta": 2e6, "no_rope_layer_interval": 4, "tie_word_embeddings": True},
    ),
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
