"""The sampling that a model's files recommend, for requests that leave it out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ..checkpoint_json import decode_file
from ..errors import ConfigError
from ..gguf_file import GgufFile
from ..sampling_params import SamplingDefaults

GENERATION_CONFIG_FILE = "generation_config.json"
_LLAMA_CPP = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
"""Small models ramble if they are sampled from their whole vocabulary, so GGUF files are used with these."""
_GGUF_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}
log = logging.getLogger(__name__)


class _Recommended(msgspec.Struct):
    """Recommended values of sampling fields; null: no recommendation."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


_ALLOWED: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda value: 0 <= value <= 2, "between 0 and 2"),
    "top_k": (lambda value: value >= -1, "at least -1"),
    "top_p": (lambda value: 0 <= value <= 1, "between 0 and 1"),
    "min_p": (lambda value: 0 <= value <= 1, "between 0 and 1"),
    "repetition_penalty": (lambda value: 0.01 <= value <= 100, "between 0.01 and 100"),
}


def sampling_defaults(model: Path, gguf: GgufFile | None = None) -> SamplingDefaults:
    """The values that generation_config.json recommends, or else the GGUF file, with llama.cpp's defaults for
    fields without one. `do_sample` does not count. Raises ConfigError for a value that no request may have.
    """
    path = model / GENERATION_CONFIG_FILE
    if path.is_file():
        recommended = decode_file(path, path.read_bytes(), _Recommended)
        if given := _check(recommended, lambda name: f"{path}: {name}"):
            return _log(given, GENERATION_CONFIG_FILE)
    if gguf is None:
        return SamplingDefaults()
    named = {name: gguf.metadata[key] for name, key in _GGUF_KEYS.items() if key in gguf.metadata}
    try:
        recommended = msgspec.convert(named, _Recommended)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{gguf.path}: general.sampling: {error}. Correct the file.") from error
    own = _check(recommended, lambda name: f"{gguf.path}: {_GGUF_KEYS[name]}")
    source = "the GGUF file, then llama.cpp's defaults" if own else "llama.cpp's defaults for GGUF files"
    return _log({**_LLAMA_CPP, **own}, source)


def _check(recommended: _Recommended, label: Callable[[str], str]) -> dict[str, Any]:
    """Returns the fields that are not null. Raises ConfigError for one that is out of its range."""
    given = {name: value for name, value in msgspec.structs.asdict(recommended).items() if value is not None}
    for name, value in given.items():
        is_allowed, words = _ALLOWED[name]
        if not is_allowed(value):
            raise ConfigError(f"{label(name)} is {value}, but must be {words}. Correct it, or remove it.")
    return given


def _log(values: dict[str, Any], source: str) -> SamplingDefaults:
    told = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
    log.info("sampling where a request leaves it out: %s (from %s)", told, source)
    return SamplingDefaults(**values)
