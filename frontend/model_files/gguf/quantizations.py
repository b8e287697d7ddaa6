"""The quantizations of a GGUF repository, by the names of its files, and the choice of one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ....runtime.errors import ConfigError
from ...core.text.close_names import did_you_mean
from .directory import SHARD

PREFERRED = "Q4_K_M"
MEMORY_SHARE = 0.8
"""the part of the free memory that the weights may take if the user names no quantization"""
_TAG = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q|TQ)\d\w*?|BF16|FP?16|FP?32|MXFP4(?:_MOE)?)(?=$|[-./])", re.IGNORECASE
)
_NOT_SERVED = re.compile(r"(?:UD-)?(?:I?Q[123]_|IQ4_XS|TQ)")
"""Quantizations with tensors of types that are not loaded (`OTHER_TYPES` in runtime/gguf_file.py)."""
_NOT_QUANTIZED = re.compile(r"BF16|FP?16|FP?32")
_NO_MODEL = re.compile(r"(?:^|/)mmproj|imatrix", re.IGNORECASE)
"""Vision encoders and statistics, which are no language models."""


class Quantization(NamedTuple):
    tag: str
    """such as Q4_K_M, in capitals; the name without its ending of a file whose name says none"""
    files: tuple[str, ...]
    """one, or all files of a split model in order"""
    bytes: int


def list_quantizations(sizes: Mapping[str, int]) -> list[Quantization]:
    """The quantizations that the files of a repository are, the smallest first.

    sizes: bytes of all files by name
    """
    grouped: dict[str, list[str]] = {}
    for name in sorted(sizes):
        if name.lower().endswith(".gguf") and not _NO_MODEL.search(name):
            match = SHARD.fullmatch(name)
            grouped.setdefault(match[1] if match else name[: -len(".gguf")], []).append(name)
    found = [
        Quantization(_read_tag(stem), tuple(names), sum(sizes[name] for name in names))
        for stem, names in grouped.items()
        if _is_whole(names)
    ]
    return sorted(found, key=lambda each: each.bytes)


def choose_quantization(
    model: str, found: list[Quantization], tag: str | None, free_bytes: int
) -> Quantization:
    """Finds the quantization with a tag, or with a file of that name.

    Without a tag: Q4_K_M; otherwise the largest quantized one that takes at most MEMORY_SHARE of
    `free_bytes`; otherwise the smallest. Raises ConfigError.
    """
    served = [each for each in found if not _NOT_SERVED.match(each.tag)]
    if tag is not None:
        return _find_tag(model, found, served, tag)
    if not served:
        raise ConfigError(
            f"MODEL {model}: it has only quantizations that Arbora does not read: {_list(found)}."
        )
    for each in served:
        if each.tag == PREFERRED:
            return each
    fitting = [
        each
        for each in served
        if not _NOT_QUANTIZED.match(each.tag) and each.bytes <= MEMORY_SHARE * free_bytes
    ]
    return fitting[-1] if fitting else served[0]


def _find_tag(model: str, found: list[Quantization], served: list[Quantization], tag: str) -> Quantization:
    wanted = tag.lower()
    matching = [
        each
        for each in found
        if each.tag.lower() == wanted
        or wanted in {name.rpartition("/")[2].lower() for name in each.files}
        or wanted in {name.lower() for name in each.files}
    ]
    if len(matching) > 1:
        files = [each.files[0].rpartition("/")[2] for each in matching]
        raise ConfigError(
            f"MODEL {model}:{tag}: it has several such files. Give the name of one in place of {tag}: "
            f"{', '.join(files)}."
        )
    if not matching:
        tags = [each.tag for each in served]
        raise ConfigError(
            f"MODEL {model}:{tag}: it has no quantization {tag}.{did_you_mean(tag, tags)} It has "
            f"{_list(served)}."
        )
    if matching[0] not in served:
        raise ConfigError(
            f"MODEL {model}:{tag}: Arbora does not read files of {matching[0].tag}. It reads {_list(served)}."
        )
    return matching[0]


def _list(found: Iterable[Quantization]) -> str:
    return ", ".join(dict.fromkeys(each.tag for each in found)) or "none"


def _read_tag(stem: str) -> str:
    tags = _TAG.findall(stem)
    return tags[-1].upper() if tags else stem.rpartition("/")[2]


def _is_whole(names: list[str]) -> bool:
    match = SHARD.fullmatch(names[0])
    return match is None or len(names) == int(match[3])
