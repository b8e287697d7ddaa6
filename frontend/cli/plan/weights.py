"""Bytes of a model's weights in each format, from its config and the formats' own descriptions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, get_args

import torch

from ....kernels.linear import FACTOR_INPUTS, CodedShape, find_packer
from ....runtime.config import QuantizeMethod
from ....runtime.errors import ConfigError
from ....runtime.model.decoder_config import DecoderConfig
from ....runtime.model.weight_formats import (
    Checkpoint,
    ChooseFormat,
    TensorSpec,
    WeightFormats,
    checkpoint_formats,
    load_weight_formats,
)
from ....runtime.model.weight_formats.compressed_tensors import choose_compressed_tensors
from ....runtime.model.weight_formats.gguf_blocks import BLOCK_TYPES
from ....runtime.model.weight_formats.packing import choose_shape
from ....runtime.model.weight_formats.quantized_checkpoint import quantization_config
from ....runtime.model.weight_formats.weight_format import FLOATS, FloatFormat
from ....runtime.model.weights import (
    EMBEDDING,
    check_tensors,
    expected_tensors,
    layer_projections,
    projections,
)

ITEM_BYTES = {"I8": 1, "U8": 1, "F8_E4M3": 1, "I32": 4, "I64": 8}
SCALE_BYTES = 2  # bytes of a scale: bfloat16 from `--quantize`, float16 in GGUF products
FACTOR_BYTES = 4  # bytes of the float32 factor for the scales of each output of a GGUF product
FLOAT_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class Weights(NamedTuple):
    """The weights' tensors in one format."""

    format: str
    bytes: int
    """bytes in the device's memory"""
    step_bytes: int
    """bytes that a step of many tokens reads: all, except an embedding that is not the head too"""
    expert_bytes: int
    """those of `step_bytes` that belong to experts"""
    is_expanded: bool = False
    """whether memory holds 16 or 32 bits, because the device has no product for the format"""


def float_weights(config: DecoderConfig, dtype: torch.dtype) -> Weights:
    return _count(config, FLOAT_NAMES[dtype], lambda projection: FloatFormat(), dtype.itemsize)


def quantized_weights(
    config: DecoderConfig, method: QuantizeMethod, dtype: torch.dtype, device: torch.device
) -> Weights:
    """The weights that `--quantize` makes, for activations of `dtype`. Raises ConfigError for sizes that
    can't be quantized."""
    choose = choose_compressed_tensors(quantization_config(method, list(projections(config))), frozenset())
    return _on_device(_count(config, method, choose, dtype.itemsize), config, dtype, device)


class StoredFormat(NamedTuple):
    """How a model stores its weights. Without files there is only its config.json."""

    formats: WeightFormats
    checkpoint: Checkpoint | None

    @classmethod
    def of(cls, model: Path) -> StoredFormat:
        """Reads the format from the model's files. Raises ConfigError for an unsupported format."""
        if not any(model.glob("*.safetensors")) and not any(model.glob("*.gguf")):
            return cls(load_weight_formats(model, frozenset()), None)
        checkpoint = Checkpoint(model)
        return cls(checkpoint_formats(model, checkpoint), checkpoint)

    def is_quantized(self, config: DecoderConfig) -> bool:
        return any(not isinstance(self.formats.choose(each), FloatFormat) for each in projections(config))

    def dtype(self) -> torch.dtype:
        """The type of the float tensors; bfloat16 if there are no files."""
        if self.checkpoint is None:
            return torch.bfloat16
        return self.checkpoint.float_dtype()

    def weights(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> Weights:
        """The weights as the files store them. Raises ConfigError if the files do not fit the config."""
        if not self.is_quantized(config):
            return float_weights(config, dtype)
        if self.checkpoint is None:
            counted = _count(config, self.formats.method, self.formats.choose, dtype.itemsize)
            return _on_device(counted, config, dtype, device)
        expected = check_tensors(self.checkpoint, config, self.formats.choose)
        there = {name: spec for name, spec in expected.items() if name in self.checkpoint.names}
        if self.checkpoint.gguf is not None:
            return _gguf_weights(config, there, dtype, device)
        sizes = {
            name: math.prod(spec.shapes[0]) * dtype.itemsize
            if self.checkpoint.dtype(name) in FLOATS and not _is_scale(name)
            else self.checkpoint.read(name).nbytes
            for name, spec in there.items()
        }
        return _on_device(_sum(config, self.formats.method, sizes), config, dtype, device)


def all_formats(config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> list[Weights]:
    """Floats of 32 and 16 bits, and each method of `--quantize` that the model's sizes allow."""
    found = [float_weights(config, torch.float32), float_weights(config, torch.bfloat16)]
    for method in get_args(QuantizeMethod):
        try:
            found.append(quantized_weights(config, method, dtype, device))
        except ConfigError:
            continue
    return found


def matrix_parameters(config: DecoderConfig) -> tuple[int, int]:
    """The numbers of parameters in the layers' matrices and in the head; of the experts, only of those that a
    token has."""
    layers = 0
    for number, layer in enumerate(config.layers):
        of_layer = layer_projections(config, number)
        parts = of_layer.feed_forward[: layer.experts.per_token if layer.experts else None]
        used = [
            *of_layer.qkv,
            of_layer.output,
            *(each for gate_up, down in parts for each in (*gate_up, down)),
        ]
        layers += sum(each.outputs * each.inputs for each in used)
    return layers, config.vocab_size * config.hidden_size


def _count(config: DecoderConfig, name: str, choose: ChooseFormat, float_bytes: int) -> Weights:
    sizes = {
        tensor: _bytes(spec, SCALE_BYTES if _is_scale(tensor) else float_bytes)
        for tensor, spec in expected_tensors(config, choose).items()
        if not spec.optional
    }
    return _sum(config, name, sizes)


def _sum(config: DecoderConfig, name: str, sizes: Mapping[str, int]) -> Weights:
    """Adds up `sizes`, the bytes of each tensor by its name."""
    total = sum(sizes.values())
    embedding = EMBEDDING.removesuffix("weight")
    rows = (
        0 if config.tied_embeddings else sum(n for tensor, n in sizes.items() if tensor.startswith(embedding))
    )
    of_experts = sum(n for tensor, n in sizes.items() if ".experts." in tensor)
    return Weights(name, total, total - rows, of_experts)


def _gguf_weights(
    config: DecoderConfig, tensors: Mapping[str, TensorSpec], dtype: torch.dtype, device: torch.device
) -> Weights:
    """The weights of a GGUF file in the device's layout. Tensors without a product are stored as floats."""
    sizes = {name: math.prod(spec.shapes[0]) * dtype.itemsize for name, spec in tensors.items()}
    blocks = {name: spec for name, spec in tensors.items() if spec.dtypes[0] in BLOCK_TYPES}
    packed = {name: size for name, spec in blocks.items() if (size := _packed_bytes(spec, device))}
    return _sum(config, "GGUF", sizes | packed)._replace(is_expanded=len(packed) < len(blocks))


def _packed_bytes(spec: TensorSpec, device: torch.device) -> int:
    """Bytes of the codes, scales, offsets and factors; 0 if the device has no product for the blocks."""
    (outputs, inputs), kind = spec.shapes[0], BLOCK_TYPES[spec.dtypes[0]]
    shape = choose_shape(
        CodedShape(outputs, inputs, kind.bits, kind.group, kind.zero, kind.has_factors), device
    )
    if shape is None:
        return 0
    assert shape.bits is not None
    unsigned_zero = 1 << (shape.bits - 1)
    has_offsets = kind.zero is None or (device.type == "cuda" and kind.zero != unsigned_zero)
    tables = 2 if has_offsets else 1
    floats, in_bytes = inputs // kind.group * tables, 0
    if shape.has_factors:
        floats, in_bytes = inputs // FACTOR_INPUTS * tables, floats
    return outputs * (inputs * shape.bits // 8 + SCALE_BYTES * floats + in_bytes + FACTOR_BYTES)


def _is_scale(tensor: str) -> bool:
    return tensor.endswith(("_scale", "_scale_inv", ".scales"))


def _bytes(spec: TensorSpec, float_bytes: int) -> int:
    dtype = spec.dtypes[0]
    return math.prod(spec.shapes[0]) * (float_bytes if dtype in FLOATS else ITEM_BYTES[dtype])


def _on_device(weights: Weights, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> Weights:
    """The weights in the device's memory: floats if the device has no product for quantized weights."""
    if _has_product(weights.format, device):
        return weights
    floats = float_weights(config, dtype)
    return floats._replace(format=weights.format, is_expanded=True)


def _has_product(name: str, device: torch.device) -> bool:
    outputs = inputs = 256
    if name == "fp8":
        shape = CodedShape(outputs, inputs, None, inputs, 0)
    else:
        shape = CodedShape(outputs, inputs, 4 if name == "int4" else 8, 32, 8)
    return find_packer(shape, device) is not None
