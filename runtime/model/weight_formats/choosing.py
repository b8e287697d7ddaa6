"""Chooses formats from the quantization configs of FP8, GPTQ and AWQ checkpoints; finds the modules that a
config names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Set
from typing import Any

import msgspec

from ...checkpoint_json import convert_part
from ...errors import ConfigError
from .compressed_formats import ByteFormat, Mxfp4Format, ScaleGrid
from .group_quantized import AwqFormat, GptqFormat
from .weight_format import ChooseFormat, FloatFormat, Projection, WeightFormat

PATTERN = "re:"


class _Fp8(msgspec.Struct):
    weight_block_size: tuple[int, int] | None = None
    modules_to_not_convert: list[str] | None = None
    ignored_layers: list[str] | None = None
    modules_to_convert: list[str] | None = None
    fmt: str = "e4m3"
    scale_fmt: str = "float"


def choose_fp8(settings: dict[str, Any], stored: Set[str]) -> ChooseFormat:
    """Chooses the format of FP8: with `weight_block_size` each block has a scale, otherwise each output or
    the whole weight has one. The method rounds activations too."""
    parsed = convert_part(settings, _Fp8)
    _only("fmt", parsed.fmt, "e4m3")
    _only("scale_fmt", parsed.scale_fmt, "float")
    _only("modules_to_convert", parsed.modules_to_convert or None, None)
    inverse = any(name.endswith(".weight_scale_inv") for name in stored)
    block = parsed.weight_block_size
    if block is not None and min(block) < 1:
        raise ConfigError(f"weight_block_size {list(block)} must be two positive numbers")
    quantized = ByteFormat(
        "F8_E4M3",
        ScaleGrid(None, None) if block is None else ScaleGrid(*block),
        "weight_scale_inv" if inverse or block is not None else "weight_scale",
        rounds_activations=True,
    )
    unquantized = [*(parsed.modules_to_not_convert or ()), *(parsed.ignored_layers or ())]
    return _unless_listed(quantized, unquantized, quantized.scale, stored)


class _Gptq(msgspec.Struct):
    bits: int
    group_size: int = 128
    desc_act: bool = False
    checkpoint_format: str | None = None
    format: str | None = None
    pack_dtype: str = "int32"
    dynamic: dict[str, Any] | None = None
    modules_in_block_to_quantize: list[list[str]] | None = None


_EXPERT = re.compile(r"\.experts\.\d+\.")


def choose_mxfp4(settings: dict[str, Any], stored: Set[str]) -> ChooseFormat:
    """gpt-oss's format, which only experts have."""
    quantized = Mxfp4Format("blocks", "scales", has_blocks=True)
    return lambda projection: quantized if _EXPERT.search(projection.name) else FloatFormat()


def choose_gptq(settings: dict[str, Any], stored: Set[str]) -> ChooseFormat:
    parsed = convert_part(settings, _Gptq)
    version = (parsed.checkpoint_format or parsed.format or "gptq").lower()
    _only("bits", parsed.bits, 4, 8)
    _only("checkpoint_format", version, "gptq", "gptq_v2")
    _only("pack_dtype", parsed.pack_dtype, "int32")
    _only("dynamic", parsed.dynamic or None, None)
    quantized = GptqFormat(
        4 if parsed.bits == 4 else 8,
        _group_size(parsed.group_size),
        parsed.desc_act,
        1 if version == "gptq" else 0,
    )
    choose = _unless_listed(quantized, [], "qweight", stored)
    if parsed.modules_in_block_to_quantize is None:
        return choose
    is_listed = name_list(name for names in parsed.modules_in_block_to_quantize for name in names)
    return lambda projection: choose(projection) if is_listed(projection.name) else FloatFormat()


class _Awq(msgspec.Struct):
    bits: int | None = None
    w_bit: int | None = None
    group_size: int | None = None
    q_group_size: int | None = None
    zero_point: bool = True
    version: str | None = None
    checkpoint_format: str | None = None
    format: str | None = None
    modules_to_not_convert: list[str] | None = None


def choose_awq(settings: dict[str, Any], stored: Set[str]) -> ChooseFormat:
    parsed = convert_part(settings, _Awq)
    _only("bits", parsed.bits or parsed.w_bit or 4, 4)
    _only("version", (parsed.version or parsed.checkpoint_format or parsed.format or "gemm").lower(), "gemm")
    _only("zero_point", parsed.zero_point, True)
    quantized = AwqFormat(_group_size(parsed.group_size or parsed.q_group_size or 128))
    return _unless_listed(quantized, parsed.modules_to_not_convert or [], "qweight", stored)


def _only(field: str, value: object, *supported: object) -> None:
    if value not in supported:
        raise ConfigError(f"{field} {value} is not supported, only {' and '.join(map(str, supported))}")


def _group_size(stated: int) -> int | None:
    """The number of inputs in a group; None for one group of all inputs, which is -1 in a config."""
    if stated < 1 and stated != -1:
        raise ConfigError(f"group_size {stated} must be positive or -1")
    return None if stated == -1 else stated


def _unless_listed(
    quantized: WeightFormat, unquantized: list[str], tensor: str, stored: Set[str]
) -> ChooseFormat:
    """Quantizes the decoder's layers, and the head if its `tensor` is stored, because few configs mention the
    head."""

    is_listed = name_list(unquantized)

    def choose(projection: Projection) -> WeightFormat:
        included = projection.name.startswith("model.layers.") or f"{projection.name}.{tensor}" in stored
        return quantized if included and not is_listed(projection.name) else FloatFormat()

    return choose


def name_list(entries: Iterable[str]) -> Callable[[str], bool]:
    """Returns a function that says whether a list such as `modules_to_not_convert` includes a module's name.

    An entry is a part of the name between dots, such as `mlp` or `layers.1`; the end of a name; a regex that
    matches the start of a name up to a dot; or a regex after `re:`.
    """
    compiled = [(entry, _compile(entry)) for entry in entries]

    def is_listed(name: str) -> bool:
        return any(
            f".{entry}." in f".{name}." or name.endswith(entry) or pattern.match(name)
            for entry, pattern in compiled
        )

    return is_listed


class Target:
    """A module name, regex or class name of compressed-tensors."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._pattern = _compile(text) if text.startswith(PATTERN) else None

    def rank(self, projection: Projection) -> int | None:
        """How the target matches: 0 by name, 1 by regex, 2 by class, None if it does not match."""
        if self._text == projection.name:
            return 0
        if self._pattern is not None:
            return 1 if self._pattern.match(projection.name) else None
        return 2 if self._text == projection.kind else None


def _compile(entry: str) -> re.Pattern[str]:
    source = entry.removeprefix(PATTERN)
    try:
        return re.compile(source if entry.startswith(PATTERN) else rf"(?:{source})(?:(?<=\.)|(?=\.|$))")
    except re.error as error:
        raise ConfigError(f"{entry} is not a valid regex: {error}") from None
