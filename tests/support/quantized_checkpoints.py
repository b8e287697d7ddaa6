"""Small quantized checkpoints, and the models of transformers with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from arbora.runtime.model.weight_formats import Checkpoint, ProjectionLoader, checkpoint_formats
from checkpoints import edit_config, random_model, save_model
from quantizers import Quantize, awq, fp8, gptq, int8_channel, mxfp4, pack_quantized
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel


class Case(NamedTuple):
    config: dict[str, Any]
    """`quantization_config`"""
    quantize: Quantize
    skipped: tuple[str, ...] = ("lm_head",)
    """parts of the names of unquantized projections"""
    family: str = "llama"


def compressed(
    format_name: str,
    ignore: tuple[str, ...] = ("lm_head",),
    activations: dict[str, Any] | None = None,
    **scheme: Any,
) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False, **scheme}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": format_name,
        "config_groups": {"group_0": group},
        "ignore": list(ignore),
        "kv_cache_scheme": None,
    }


FP8: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
AWQ: dict[str, Any] = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 32,
    "zero_point": True,
    "version": "gemm",
}
BY_TOKEN: dict[str, Any] = {"num_bits": 8, "strategy": "token", "symmetric": True, "dynamic": True}
GROUP4: dict[str, Any] = {"num_bits": 4, "strategy": "group", "group_size": 32}
HALF = torch.bfloat16
CASES = {
    "fp8 in blocks": Case(
        {**FP8, "weight_block_size": [32, 40], "modules_to_not_convert": ["lm_head", "model.layers.1.mlp"]},
        fp8(32, 40, "weight_scale_inv"),
        ("lm_head", "layers.1.mlp"),
    ),
    "fp8 in blocks larger than a weight": Case(
        {**FP8, "weight_block_size": [128, 128]}, fp8(128, 128, "weight_scale_inv", HALF)
    ),
    "fp8 per tensor": Case({**FP8, "ignored_layers": ["lm_head"]}, fp8(None, None, "weight_scale")),
    "compressed-tensors fp8 per tensor": Case(
        compressed("float-quantized", type="float", strategy="tensor"), fp8(None, None, "weight_scale", HALF)
    ),
    "compressed-tensors fp8 per channel": Case(
        compressed("float-quantized", type="float", strategy="channel"), fp8(1, None, "weight_scale", HALF)
    ),
    "compressed-tensors fp8 in blocks": Case(
        compressed("float-quantized", type="float", strategy="block", block_structure=[32, 32]),
        fp8(32, 32, "weight_scale", HALF),
    ),
    "compressed-tensors fp8 with a quantized head": Case(
        compressed("float-quantized", (), type="float", strategy="channel"),
        fp8(1, None, "weight_scale"),
        (),
    ),
    "compressed-tensors fp8 with activations": Case(
        compressed(
            "float-quantized", ("lm_head",), {**BY_TOKEN, "type": "float"}, type="float", strategy="channel"
        ),
        fp8(1, None, "weight_scale", HALF),
    ),
    "compressed-tensors int8 with activations": Case(
        compressed("int-quantized", ("lm_head",), {**BY_TOKEN, "type": "int"}, strategy="channel"),
        int8_channel(),
    ),
    "compressed-tensors int8": Case(compressed("int-quantized", strategy="channel"), int8_channel()),
    "compressed-tensors int8 with zero points": Case(
        compressed("int-quantized", strategy="channel", symmetric=False), int8_channel(symmetric=False)
    ),
    "compressed-tensors 4 bits": Case(compressed("pack-quantized", **GROUP4), pack_quantized(4, 32)),
    "compressed-tensors 4 bits with zero points": Case(
        compressed("pack-quantized", ("lm_head", r"re:.*\.1\..*o_proj"), **GROUP4, symmetric=False),
        pack_quantized(4, 32, symmetric=False),
        ("lm_head", "layers.1.self_attn.o_proj"),
    ),
    "compressed-tensors 4 bits per channel": Case(
        compressed("pack-quantized", num_bits=4, strategy="channel"), pack_quantized(4, None)
    ),
    "compressed-tensors 4 bits, ordered by activations": Case(
        compressed("pack-quantized", **GROUP4, actorder="group"), pack_quantized(4, 32, ordered=True)
    ),
    "compressed-tensors 8 bits, packed": Case(
        compressed("pack-quantized", num_bits=8, strategy="group", group_size=32, symmetric=False),
        pack_quantized(8, 32, symmetric=False),
    ),
    "compressed-tensors mxfp4": Case(
        compressed("mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32), mxfp4()
    ),
    "gptq": Case(GPTQ, gptq(4, 32), family="qwen2"),
    "gptq with uneven groups": Case({**GPTQ, "group_size": 40}, gptq(4, 40)),
    "gptq of one group": Case({**GPTQ, "group_size": -1}, gptq(4, -1)),
    "gptq with zero biases": Case(GPTQ, gptq(4, 32, biased=True)),
    "gptq ordered by activations": Case(
        {**GPTQ, "desc_act": True}, gptq(4, 32, ordered=True), family="qwen3"
    ),
    "gptq 8 bits": Case({**GPTQ, "bits": 8}, gptq(8, 32)),
    "gptq version 2": Case({**GPTQ, "checkpoint_format": "gptq_v2"}, gptq(4, 32, zero_offset=0)),
    "gptq with a quantized head": Case({**GPTQ, "lm_head": True}, gptq(4, 32), (), family="qwen3"),
    "gptq of the feed-forward layers": Case(
        {**GPTQ, "modules_in_block_to_quantize": [["mlp.gate_proj", "mlp.up_proj"], ["mlp.down_proj"]]},
        gptq(4, 32),
        ("lm_head", "self_attn"),
    ),
    "awq": Case(AWQ, awq(32), family="mistral"),
    "awq of one group": Case({**AWQ, "group_size": -1}, awq(-1)),
    "awq without some projections": Case(
        {**AWQ, "modules_to_not_convert": ["self_attn.k_proj"]}, awq(32), ("lm_head", "k_proj"), "qwen2"
    ),
}


def write_quantized(case: Case, directory: Path, **fields: Any) -> PreTrainedModel:
    """A quantized random model; returns it with the weights that the quantized ones encode."""
    model = random_model(case.family, num_hidden_layers=2, **fields)
    save_model(model, directory)
    edit_config(directory, quantization_config=case.config)
    tensors = load_file(directory / "model.safetensors")
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or any(part in name for part in case.skipped):
            continue
        quantized = case.quantize(tensors.pop(f"{name}.weight"))
        tensors |= {f"{name}.{part}": tensor for part, tensor in quantized.tensors.items()}
        module.weight.data.copy_(quantized.weight)
    save_file(tensors, directory / "model.safetensors")
    return model


def loader_of(
    directory: Path,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    batch_invariant: bool = False,
) -> ProjectionLoader:
    checkpoint = Checkpoint(directory)
    choose = checkpoint_formats(directory, checkpoint).choose
    return ProjectionLoader(checkpoint, choose, dtype, torch.device(device), batch_invariant)
