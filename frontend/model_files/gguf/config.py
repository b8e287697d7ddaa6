"""Makes config.json from a GGUF file's metadata."""

from __future__ import annotations

import math
import reprlib
from typing import Any

from ....runtime.errors import ConfigError
from ....runtime.gguf_families import GGUF_EXPERT_FAMILIES, GGUF_FAMILIES, find_family
from ....runtime.gguf_file import GgufFile
from .family_fields import EXPERT_FAMILIES, FAMILIES
from .metadata import Metadata

ROPE_TYPES = {"none": "default", "linear": "linear", "yarn": "yarn"}
EMBEDDING = "token_embd.weight"
ROPE_FACTORS = "rope_freqs.weight"
LOW, HIGH, ORIGINAL = 1.0, 4.0, 8192
"""The position scaling of Llama 3.1 to 3.3. A GGUF file contains only its effect on frequencies."""
LLAMA4_HIGH = 1.0
"""the same for Llama 4, where each frequency of rotation is either stretched or kept"""
FACTOR_TOLERANCE = 1e-3
MAX_LAYERS = 10_000


def model_config(file: GgufFile) -> dict[str, Any]:
    """The content of config.json. Raises ConfigError for an architecture that can't be served."""
    metadata = Metadata(file)
    name = metadata.architecture
    has_experts = bool(metadata.find("expert_count", int))
    family = find_family(name, has_experts)
    if family is None:
        kind = f"{reprlib.repr(name)} with{'' if has_experts else 'out'} experts"
        raise ConfigError(
            f"{file.path}: general.architecture {kind} is not supported. Supported: "
            f"{', '.join(GGUF_FAMILIES)}; with experts {', '.join(GGUF_EXPERT_FAMILIES)}."
        )
    hidden, heads = metadata.require("embedding_length", int), metadata.require("attention.head_count", int)
    head_dim = metadata.find("attention.key_length", int) or hidden // heads
    if head_dim < 1:
        raise metadata.wrong(
            f"{name}.attention.head_count", f"should be at most the {hidden} dimensions", heads
        )
    rotated = metadata.find("rope.dimension_count", int) or head_dim
    if rotated > head_dim:
        raise metadata.wrong(
            f"{name}.rope.dimension_count", f"should be at most the {head_dim} dimensions of a head", rotated
        )
    predicting = metadata.find("nextn_predict_layers", int) or 0  # they draft later tokens, and are not used
    layers = metadata.require("block_count", int) - predicting
    if not 0 < layers <= MAX_LAYERS:
        bounds = f"should be at most {MAX_LAYERS}, and above {predicting} layers that predict later tokens"
        raise metadata.wrong(f"{name}.block_count", bounds, layers + predicting)
    width = "feed_forward_length"
    if has_experts and metadata.find(width, int) is None:  # no layer is without experts
        width = "expert_feed_forward_length"
    config = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": _embedding_rows(file),
        "hidden_size": hidden,
        "intermediate_size": metadata.require(width, int),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": _kv_heads(metadata, layers) or heads,
        "head_dim": head_dim,
        "max_position_embeddings": metadata.require("context_length", int),
        "rms_norm_eps": metadata.require("attention.layer_norm_rms_epsilon", float),
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "partial_rotary_factor": rotated / head_dim,
        "rope_parameters": _rope(metadata),
        "dtype": _dtype(file),
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),  # the tokenizer's files have them
    }
    if name == "llama" and not has_experts and (window := metadata.find("attention.sliding_window", int)):
        config |= {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": window,
        }
    fields = EXPERT_FAMILIES if has_experts else FAMILIES
    return config | (fields[name](metadata, config) if name in fields else {})


def _kv_heads(metadata: Metadata, layers: int) -> int | None:
    """The number of KV heads of each layer with attention. In a list, the other layers have 0."""
    key = "attention.head_count_kv"
    of_layers = metadata.find_list(key, int, layers)
    if of_layers is None:
        return metadata.find(key, int)
    counts = {*of_layers} - {0}
    if len(counts) != 1:
        full = f"{metadata.architecture}.{key}"
        raise metadata.wrong(full, "should be the same for all layers with attention", of_layers)
    return counts.pop()


def _embedding_rows(file: GgufFile) -> int:
    if EMBEDDING not in file.tensors:
        raise ConfigError(f"{file.path}: tensor {EMBEDDING} is missing, so the file is not a language model.")
    shape = file.tensors[EMBEDDING].shape
    if len(shape) != 2 or 0 in shape:
        raise ConfigError(
            f"{file.path}: tensor {EMBEDDING} has the shape {list(shape)}; expected [tokens, dim]."
        )
    return shape[0]


def _rope(metadata: Metadata) -> dict[str, Any]:
    theta = metadata.find("rope.freq_base", float) or 10000.0
    stated = metadata.find("rope.scaling.type", str) or "none"
    if stated not in ROPE_TYPES:
        raise ConfigError(
            f"{metadata.file.path}: {metadata.architecture}.rope.scaling.type {stated} is not supported. "
            f"Supported: {', '.join(ROPE_TYPES)}."
        )
    rope: dict[str, Any] = {"rope_type": ROPE_TYPES[stated], "rope_theta": theta}
    if stated != "none":
        rope["factor"] = metadata.require("rope.scaling.factor", float)
    if stated == "yarn":
        named = {
            "original_max_position_embeddings": metadata.find("rope.scaling.original_context_length", int),
            "attention_factor": metadata.find("rope.scaling.yarn_attn_factor", float)
            or metadata.find("rope.scaling.attn_factor", float),
            "beta_fast": metadata.find("rope.scaling.yarn_beta_fast", float),
            "beta_slow": metadata.find("rope.scaling.yarn_beta_slow", float),
        }
        rope |= {name: value for name, value in named.items() if value is not None}
    if ROPE_FACTORS in metadata.file.tensors:
        high = LLAMA4_HIGH if metadata.architecture == "llama4" else HIGH
        rope |= {
            "rope_type": "llama3",
            "factor": _llama3_factor(metadata.file, theta, high),
            "low_freq_factor": LOW,
            "high_freq_factor": high,
            "original_max_position_embeddings": ORIGINAL,
        }
    return rope


def _llama3_factor(file: GgufFile, theta: float, high: float) -> float:
    """The factor with which Llama 3 stretches positions. The file contains only its effect on each
    frequency."""
    stored = file.floats(ROPE_FACTORS)
    if not stored or not all(0 < value < math.inf for value in stored):
        raise ConfigError(f"{file.path}: tensor {ROPE_FACTORS} should have positive values.")
    factor = max(stored)
    for index, value in enumerate(stored):
        turns = ORIGINAL / (2 * math.pi * theta ** (index / len(stored)))
        share = (turns - LOW) / (high - LOW) if high > LOW else float(turns >= LOW)
        share = min(max(share, 0.0), 1.0)
        expected = 1 / ((1 - share) / factor + share)
        if abs(value - expected) > FACTOR_TOLERANCE * expected:
            raise ConfigError(
                f"{file.path}: tensor {ROPE_FACTORS} is not supported: value {index} is {value:g}, but with "
                f"Llama 3's factors of rotation it would be {expected:g}."
            )
    return factor


def _dtype(file: GgufFile) -> str:
    """The type of most bytes of the matrices; bfloat16 if that is a quantized type."""
    sizes: dict[str, int] = {}
    for tensor in file.tensors.values():
        if len(tensor.shape) > 1:
            sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.bytes
    return {"F32": "float32", "F16": "float16"}.get(max(sizes, key=sizes.__getitem__), "bfloat16")
