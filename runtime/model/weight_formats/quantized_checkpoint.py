"""Quantizes a checkpoint in 16 or 32 bits and writes the result in the format of compressed-tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file

from ...checkpoint_json import CONFIG_FILE, config_text
from ...config import QuantizeMethod
from ...errors import ConfigError
from .checkpoint import INDEX_FILE, Checkpoint
from .compressed_tensors import PACKED
from .expand import pieces
from .quantize import round_to_fp8, round_to_int4, round_to_int8
from .weight_format import Projection

GROUPS = (128, 64, 32, 16)
"""sizes of groups that share a scale; the first one that divides all projections' inputs is used"""
SHARD = 512 << 20
"""Approximate size of a file in bytes. Files are small so that little memory is needed."""
HEAD = "lm_head"
DOWN = ".mlp.down_proj"
"""The end of the names of projections of which about half get int8 in place of int4. With groups of
128, this takes about as many bits, and is about as exact, as int4 alone with groups of 32, whose products are
slower (docs/quantization.md)."""


def write_quantized(
    target: Path,
    model: Path,
    checkpoint: Checkpoint,
    projections: Sequence[Projection],
    method: QuantizeMethod,
    progress: Callable[[str], None] = lambda text: None,
) -> None:
    """Writes the files into the directory `target`. The checkpoint was checked to have the projections in 16
    or 32 bits. `progress` is called after each matrix. Raises ConfigError for values or sizes that can't be
    quantized."""
    schemes = _schemes(method, projections)
    quantized = {f"{each.name}.weight" for each in projections}
    writer = _Writer(target)
    others = sorted(checkpoint.names - quantized)
    checkpoint.check_finite(others)
    for name in others:
        writer.add({name: checkpoint.read(name).clone()})
    with _one_thread_each() as threads:
        for done, each in enumerate(projections, start=1):
            scheme = schemes.of(each.name)
            weight = checkpoint.read(f"{each.name}.weight")

            def rounded(piece: slice) -> tuple[torch.Tensor, torch.Tensor]:
                rows = weight[piece].to(torch.float32)  # noqa: B023 (all are done before the next projection)
                if not rows.isfinite().all():
                    checkpoint.check_finite([f"{each.name}.weight"])  # noqa: B023
                return scheme.round(rows)  # noqa: B023

            parts = list(threads.map(rounded, pieces(each.outputs, each.inputs)))
            codes, scales = (torch.cat(column) for column in zip(*parts, strict=True))
            stored = {"weight_packed": _words(codes)} if scheme.layout == PACKED else {"weight": codes}
            writer.add({f"{each.name}.{part}": tensor for part, tensor in stored.items()})
            writer.add({f"{each.name}.weight_scale": scales})
            progress(f"quantizing to {method}: {done} of {len(projections)} matrices")
    writer.close()
    config = json.loads(config_text(model)) | {"quantization_config": _config(schemes)}
    (target / CONFIG_FILE).write_text(json.dumps(config, indent=1))


@contextmanager
def _one_thread_each() -> Iterator[ThreadPoolExecutor]:
    """A pool of as many threads as PyTorch uses. Inside each, PyTorch uses one thread."""
    count = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as threads:
            yield threads
    finally:
        torch.set_num_threads(count)


class _Scheme(NamedTuple):
    """How matrices are quantized."""

    layout: str
    """`format` in the config of compressed-tensors"""
    weights: dict[str, Any]
    """`QuantizationArgs` in the config of compressed-tensors"""
    round: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
    """returns codes and scales of a weight float32 [n, inputs]"""


class _Schemes(NamedTuple):
    of_layers: _Scheme
    int8: _Scheme
    with_int8: Sequence[str]
    """names of the matrices that get `int8`; the others get `of_layers`"""

    def of(self, name: str) -> _Scheme:
        return self.int8 if name in self.with_int8 else self.of_layers


def _schemes(method: QuantizeMethod, projections: Sequence[Projection]) -> _Schemes:
    of_vocabulary = _of_vocabulary(projections)
    group = _group(
        [each.inputs for each in projections if method != "fp8" or each.name in of_vocabulary], method
    )
    int8 = _Scheme("int-quantized", _integers(8, group), partial(round_to_int8, group=group))
    if method == "int8":
        return _Schemes(int8, int8, of_vocabulary)
    if method == "fp8":
        weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
        return _Schemes(_Scheme("float-quantized", weights, round_to_fp8), int8, of_vocabulary)
    int4 = _Scheme(PACKED, _integers(4, group), partial(round_to_int4, group=group))
    return _Schemes(int4, int8, (*of_vocabulary, *_sensitive(projections)))


def _of_vocabulary(projections: Sequence[Projection]) -> tuple[str, ...]:
    """Names of the matrices that get int8 with every method."""
    return (HEAD, *(each.name for each in projections if each.kind == "Embedding"))


def _sensitive(projections: Sequence[Projection]) -> list[str]:
    """Names of the projections `DOWN` of the first and the last eighth of the layers, and of every third
    layer in between.

    llama.cpp's Q4_K_M chooses nearly the same layers for 6 bits in place of 4.
    """
    downs = [each.name for each in projections if each.name.endswith(DOWN)]
    edge = max(1, len(downs) // 8)
    return [
        name
        for layer, name in enumerate(downs)
        if layer < edge or layer >= len(downs) - edge or (layer - edge) % 3 == 2
    ]


def _integers(bits: int, group: int) -> dict[str, Any]:
    return {"num_bits": bits, "strategy": "group", "group_size": group}


def _group(inputs: Sequence[int], method: QuantizeMethod) -> int:
    for size in GROUPS:
        if not any(count % size for count in inputs):
            return size
    raise ConfigError(
        f"--quantize {method}: a projection of this model has {next(n for n in inputs if n % GROUPS[-1])} "
        f"inputs, which is no multiple of {GROUPS[-1]}. Leave the option out."
    )


def _words(codes: torch.Tensor) -> torch.Tensor:
    """Packs int8 values from -8 to 7 into int32 [n, inputs / 8], in the layout of `pack-quantized`."""
    unsigned = (codes + 8).view(torch.uint8)
    return (unsigned[:, ::2] | (unsigned[:, 1::2] << 4)).view(torch.int32)


def quantization_config(method: QuantizeMethod, projections: Sequence[Projection]) -> dict[str, Any]:
    """The `quantization_config` of the checkpoint that `write_quantized` makes. Raises ConfigError for sizes
    that can't be quantized."""
    return _config(_schemes(method, projections))


def _config(schemes: _Schemes) -> dict[str, Any]:
    def group(targets: Sequence[str], scheme: _Scheme) -> dict[str, Any]:
        return {"targets": list(targets), "format": scheme.layout, "weights": scheme.weights}

    return {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "config_groups": {
            "layers": group(("Linear",), schemes.of_layers),
            "int8": group(schemes.with_int8, schemes.int8),
        },
    }


class _Writer:
    """Writes tensors to shards, with an index."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._shard: dict[str, torch.Tensor] = {}
        self._bytes = 0
        self._file_of: dict[str, str] = {}
        self._shards = 0

    def add(self, tensors: dict[str, torch.Tensor]) -> None:
        self._shard |= tensors
        self._bytes += sum(tensor.nbytes for tensor in tensors.values())
        if self._bytes >= SHARD:
            self._write()

    def close(self) -> None:
        if self._shard:
            self._write()
        (self._directory / INDEX_FILE).write_text(json.dumps({"weight_map": self._file_of}))

    def _write(self) -> None:
        self._shards += 1
        name = f"model-{self._shards:05}.safetensors"
        save_file(self._shard, self._directory / name)
        self._file_of |= dict.fromkeys(self._shard, name)
        self._shard, self._bytes = {}, 0
