"""A whole model directory: the tiny tokenizer and template, and a Llama of random weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tiny_model import VOCAB_SIZE, write_tiny_model

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS = 32, 64, 2, 4, 2
CONTEXT = 512
END_OF_TURN = 2  # <|im_end|>


def write_tiny_checkpoint(directory: Path) -> Path:
    """Random weights that make varied text; end-of-turn is as likely as any other token."""
    write_tiny_model(directory)
    random = np.random.default_rng(0)
    kv = HIDDEN // HEADS * KV_HEADS
    shapes = {"model.embed_tokens.weight": (VOCAB_SIZE, HIDDEN), "lm_head.weight": (VOCAB_SIZE, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            f"{at}.self_attn.k_proj.weight": (kv, HIDDEN),
            f"{at}.self_attn.v_proj.weight": (kv, HIDDEN),
            f"{at}.self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            f"{at}.mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{at}.mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{at}.mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        }
    weights = {name: 0.3 * random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    norms = [f"model.layers.{layer}.{norm}" for layer in range(LAYERS) for norm in NORMS] + ["model.norm"]
    weights |= {f"{norm}.weight": np.ones(HIDDEN, np.float32) for norm in norms}
    save_file(
        {name: weight.astype(np.float32) for name, weight in weights.items()}, directory / "model.safetensors"
    )
    (directory / "config.json").write_text(json.dumps(CONFIG))
    return directory


NORMS = ("input_layernorm", "post_attention_layernorm")
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "eos_token_id": END_OF_TURN,
}
