"""Reads the options that are given, and builds the configuration from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from logging import getLogger
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from ...runtime.api_keys import plain_key
from ...runtime.config import BUILTIN_MODEL, Device, ServeConfig
from ..core.text.close_names import did_you_mean
from ..http.keys.key_file import KeyFile
from ..model_files.model_source import find_model, served_name
from .option_checks import check_keys, check_together, make_directory, unwritable
from .option_table import OPTIONS, Setting

OTHER_VARIABLES = ("ARBORA_MODEL", "ARBORA_URL")


def from_environment(environment: Mapping[str, str] = os.environ) -> dict[str, Setting]:
    """The `ARBORA_*` variables that are not empty."""
    given = {option.name: environment.get(option.variable) for option in OPTIONS}
    return {name: Setting(f"ARBORA_{name.upper()}", text) for name, text in given.items() if text}


def unknown_variables(environment: Mapping[str, str] = os.environ) -> str:
    """A warning of variables that are named like options, but aren't; empty if there are none."""
    known = {*OTHER_VARIABLES, *(option.variable for option in OPTIONS)}
    unknown = [name for name in environment if name.startswith("ARBORA_") and name not in known]
    told = [f"{name} has no effect.{did_you_mean(name, known)}" for name in sorted(unknown)]
    return " ".join(told)


def build_config(
    model: str | None,
    settings: Mapping[str, Setting],
    check: Callable[[ServeConfig], object] = lambda config: None,
) -> ServeConfig:
    """The checked configuration. Downloads the model if needed, after `check` has seen the rest. Raises
    ConfigError."""
    values: dict[str, Any] = {option.name: option.value_of(settings.get(option.name)) for option in OPTIONS}
    values["device"] = values["device"] or visible_device()
    data_dir: Path | Literal["off"] | None = values["data_dir"]
    values["data_dir"] = None if data_dir == "off" else data_dir or _default_data_directory()
    values["prefix_cache"] = not values.pop("no_prefix_cache")
    file: KeyFile | None = values.pop("api_key_file")
    fixed = dict.fromkeys(map(plain_key, values.pop("api_key")))
    if file is not None:
        check_keys(fixed, file, settings["api_key_file"].label)
    values["api_keys"] = (*fixed, *(file.keys if file else ()))
    values["api_key_file"] = file.path if file else None
    values["keys_of_file"] = len(file.keys) if file else 0
    values["allowed_hosts"] = values.pop("allowed_host")
    values["allowed_origins"] = values.pop("allowed_origin")
    names = values["served_model_name"] or (served_name(model),)
    values["served_model_name"], values["more_model_names"] = names[0], names[1:]
    check_together(values, {name for name, setting in settings.items() if setting.value is not None})
    if values["disk_cache"] is not None:
        make_directory(values["disk_cache"], settings["disk_cache"].label)
    if data_dir is None:
        values["data_dir"] = _made_unless_unwritable(values["data_dir"])
    elif data_dir != "off":
        make_directory(data_dir, settings["data_dir"].label)
    config = ServeConfig(model=BUILTIN_MODEL, **values)
    check(config)
    return replace(config, model=find_model(model))


def _default_data_directory() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "arbora"


def _made_unless_unwritable(default: Path) -> Path | None:
    """The default data directory; None, with a warning, if nothing can be stored there."""
    problem = unwritable(default)
    if problem is None:
        return default
    getLogger(__name__).warning(
        "%s: %s, so no responses, files or batches are stored. Name a directory for them with --data-dir, or "
        "give --data-dir off.",
        default,
        problem,
    )
    return None


def visible_device() -> Device:
    """cuda if the driver of an NVIDIA GPU is there and not hidden. Loads no library to find out."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
    nodes = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")
    return "cuda" if not hidden and any(Path(node).exists() for node in nodes) else "cpu"
