"""The sampling that generation_config.json recommends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ..checkpoint_json import decode_file
from ..errors import ConfigError
from ..sampling_params import SamplingDefaults

GENERATION_CONFIG_FILE = "generation_config.json"


class _Recommended(msgspec.Struct):
    """null: no recommendation"""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


_ALLOWED: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda value: 0 <= value <= 2, "between 0 and 2"),
    "top_k": (lambda value: value >= -1, "at least -1"),
    "top_p": (lambda value: 0 < value <= 1, "above 0 and at most 1"),
    "min_p": (lambda value: 0 <= value <= 1, "between 0 and 1"),
    "repetition_penalty": (lambda value: 0.01 <= value <= 100, "between 0.01 and 100"),
}


def sampling_defaults(model: Path) -> SamplingDefaults:
    """What the model's file recommends; `do_sample` does not count. Raises ConfigError for a value that no
    request may have."""
    path = model / GENERATION_CONFIG_FILE
    if not path.is_file():
        return SamplingDefaults()
    recommended = decode_file(path, path.read_bytes(), _Recommended)
    given = {name: value for name, value in msgspec.structs.asdict(recommended).items() if value is not None}
    for name, value in given.items():
        is_allowed, words = _ALLOWED[name]
        if not is_allowed(value):
            raise ConfigError(f"{path}: {name} is {value}, but must be {words}. Correct it, or remove it.")
    return SamplingDefaults(**given)
