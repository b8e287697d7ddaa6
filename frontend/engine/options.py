"""The options of `Engine` itself."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

from ...runtime.config import OPTIONS, ServeConfig
from ...runtime.errors import ConfigError
from ..core.text.close_names import did_you_mean
from ..launch.errors import ServerError
from ..launch.options import REPLACED, Setting, build_config


class EngineOptions(TypedDict, total=False):
    """The options of `arbora serve` that concern the model. Sizes are bytes, or text such as "4GiB". `lora`
    has the directories of adapters by their names, or texts NAME=DIRECTORY."""

    chat_template: str
    device: str
    dtype: str
    model_impl: str
    runner: str
    quantize: str
    packed_weights: str
    lora: Mapping[str, str] | Sequence[str]
    max_loras: int
    max_lora_rank: int
    kv_dtype: str
    max_model_len: int
    kv_memory: int | str
    host_cache: int | str
    disk_cache: str
    remote_cache: str
    write_policy: str
    max_running: int
    max_waiting: int
    step_ms: float
    speculate: int | str
    deterministic: bool
    request_defaults: str
    prompt_rules: str
    debug: str
    log_level: str


_NAMES = tuple(EngineOptions.__annotations__)
HTTP_ONLY = tuple(option.name for option in OPTIONS if option.name not in _NAMES)
_FLAG = re.compile("--[a-z-]+")
_KEYWORDS = {option.flag: option.name for option in OPTIONS if option.name in _NAMES}


def engine_config(model: str | None, options: EngineOptions) -> ServeConfig:
    """The configuration for the options. Raises ConfigError, or TypeError for an unknown option."""
    for name in options:
        if name in REPLACED:
            instead, value = REPLACED[name]
            raise TypeError(f'{name} is now {instead}="{value}"')
        if name in HTTP_ONLY:
            raise TypeError(f"{name} is an option of `arbora serve` only, as an Engine has no HTTP")
        if name not in _NAMES:
            raise TypeError(
                f"unknown option {name!r}.{did_you_mean(name, _NAMES)} There are {', '.join(_NAMES)}."
            )
    settings = {"log_level": Setting("log_level", "warning"), "data_dir": Setting("data_dir", "off")}
    settings |= {name: Setting(name, value) for name, value in options.items()}
    if (adapters := options.get("lora")) is not None and not isinstance(adapters, str):
        texts = (
            [f"{name}={path}" for name, path in adapters.items()]
            if isinstance(adapters, Mapping)
            else adapters
        )
        settings["lora"] = Setting("lora", list(texts))
    return build_config(model, settings)


@contextlib.contextmanager
def errors_with_keywords() -> Iterator[None]:
    """Makes errors name the keywords of `Engine` in place of flags such as --kv-memory."""
    try:
        yield
    except (ConfigError, ServerError) as error:
        error.args = (_FLAG.sub(lambda flag: _KEYWORDS.get(flag[0], flag[0]), str(error)),)
        raise
