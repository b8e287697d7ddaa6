"""Reads the options that are given, checks them together, and builds the configuration from them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from logging import getLogger
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from ...runtime.api_keys import plain_key
from ...runtime.cache_directory import cache_directory
from ...runtime.config import BUILTIN_MODEL, OPTIONS, Device, ServeConfig
from ...runtime.errors import ConfigError
from ...runtime.option_values import Option, read_file, show
from ..core.text.close_names import did_you_mean
from ..http.key_file import check_beside, read_key_file
from ..http.tls import tls_context
from ..model_files.model_source import find_model, served_name

REPLACED = {
    "uds": ("host", "unix:PATH"),
    "allowed_host": ("host", "ADDRESS,NAME"),
    "ssl_keyfile": ("ssl_certfile", "FILE,KEYFILE"),
    "disk_cache_size": ("disk_cache", "DIRECTORY,SIZE"),
    "data_size": ("data_dir", "DIRECTORY,SIZE"),
    "log_texts": ("log_requests", "json+texts"),
    "api_key_file": ("api_key", "@FILE"),
    "isolate_keys": ("isolate", "keys"),
    "protect_metrics": ("isolate", "metrics"),
    "check_invariants": ("debug", "invariants"),
    "enforce_eager": ("debug", "eager"),
    "no_prefix_cache": ("debug", "uncached"),
    "additional_properties": ("request_defaults", "additional_properties=WORD"),
    "whitespace": ("request_defaults", "whitespace=WORD"),
    "unenforced": ("request_defaults", "unenforced=WORD"),
    "reasoning_field": ("request_defaults", "reasoning_field=NAME"),
}
"""For each option of earlier versions, the option and the value that replace it."""
KEEP_ALIVE_SECONDS = 300.0
"""how long one of several models stays loaded without a request, as Ollama keeps it"""
OTHER_VARIABLES = ("ARBORA_MODEL", "ARBORA_URL")
EXPORTER = "opentelemetry.exporter.otlp.proto.http"


class Setting(NamedTuple):
    """The value given for an option, and the name it was given under: `--port`, `ARBORA_PORT` or `port=`."""

    label: str
    value: object

    def read(self, option: Option) -> Any:
        """The option's value. Raises ConfigError for a text that is no valid value."""
        texts = self.value if isinstance(self.value, list) else [self.value]
        values = [self._read_text(option, str(text)) for text in texts]
        return tuple(dict.fromkeys(chain(*values))) if option.is_repeatable else values[-1]

    def _read_text(self, option: Option, text: str) -> Any:
        try:
            return option.read(text)
        except ValueError as error:
            raise ConfigError(f"{self.label} {show(text)}".rstrip() + f": {error}") from error


def from_environment(environment: Mapping[str, str] = os.environ) -> dict[str, Setting]:
    """The options in `ARBORA_*` variables that are not empty. Raises ConfigError for removed options."""
    for name, (instead, value) in REPLACED.items():
        variable = f"ARBORA_{name.upper()}"
        if environment.get(variable):
            raise ConfigError(f"{variable} is now ARBORA_{instead.upper()}={value}.")
    given = {option: environment.get(option.variable) for option in OPTIONS}
    return {option.name: Setting(option.variable, text) for option, text in given.items() if text}


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
    """The checked configuration. Downloads the model if needed, after `check` has accepted the options.
    Raises ConfigError."""
    given = {name: setting for name, setting in settings.items() if setting.value is not None}
    values: dict[str, Any] = {"device": visible_device()}
    for option in OPTIONS:
        if option.name in given:
            value = given[option.name].read(option)
            values |= value if isinstance(value, dict) else {option.field: value}
    values.setdefault("packed_weights", cache_directory("packed"))
    if "data_dir" not in values:
        values["data_dir"] = _make_default_data_directory()
    if "api_key" in given:
        values |= _read_keys(values["api_keys"], given["api_key"].label)
    names = values.pop("more_model_names", None) or (served_name(model),)
    others = [(name or served_name(source), source) for name, source in values.get("also_serve", ())]
    values["also_serve"] = tuple(others)
    if others:
        values.setdefault("keep_alive", KEEP_ALIVE_SECONDS)
    config = ServeConfig(
        model=BUILTIN_MODEL, served_model_name=names[0], more_model_names=names[1:], **values
    )
    _check_together(config, given)
    _check_ranks(config)
    _check_adapters(config)
    _check_models(config, given)
    if config.disk_cache is not None:
        _make_directory(config.disk_cache, given["disk_cache"].label)
    if config.data_dir is not None and "data_dir" in given:
        _make_directory(config.data_dir, given["data_dir"].label)
    check(config)
    found = tuple((name, str(find_model(source))) for name, source in others)
    return replace(config, model=find_model(model), also_serve=found)


def _read_keys(given: Collection[str], label: str) -> dict[str, Any]:
    """The fields of the API keys: keys given one by one, then keys of the file. Raises ConfigError."""
    fixed = tuple(plain_key(key) for key in given if not key.startswith("@"))
    files = [key for key in given if key.startswith("@")]
    if not files:
        return {"api_keys": fixed}
    if len(files) > 1:
        raise ConfigError(f"{label} {files[1]}: there is a file of keys already, {files[0]}. Use one file.")
    path = read_file(files[0].removeprefix("@"))
    try:
        keys = read_key_file(path)
        check_beside(fixed, keys)
    except ValueError as error:
        raise ConfigError(f"{label} {files[0]}: {error}") from None
    return {"api_keys": (*fixed, *keys), "api_key_file": path, "keys_of_file": len(keys)}


def _make_default_data_directory() -> Path | None:
    """The default data directory; None, with a warning, if nothing can be stored there."""
    default = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "arbora"
    problem = _why_unwritable(default)
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


def _check_together(config: ServeConfig, given: Collection[str]) -> None:
    """Raises ConfigError for options that would have no effect or can't be used together."""
    if config.device == "cuda" and config.deterministic:
        raise ConfigError(
            "--deterministic: only the CPU kernels keep that promise, those for CUDA don't. Leave it out, or "
            "use --device cpu."
        )
    if config.device == "cpu" and config.kv_dtype == "fp8":
        raise ConfigError(
            "--kv-dtype fp8: only the CUDA kernels read it, those for CPUs don't. Use --kv-dtype int8, which "
            "takes the same memory, or --device cuda."
        )
    if config.quiet and (loud := [name for name in ("log_level", "log_requests") if name in given]):
        raise ConfigError(
            f"--quiet: it leaves only warnings and errors in the log, so --{loud[0].replace('_', '-')} would "
            "have no effect. Leave one of them out."
        )
    tiers = config.host_cache or config.disk_cache or config.remote_cache
    if (tiers or config.moves_prefill) and not config.prefix_cache:
        raise ConfigError(
            "--debug uncached leaves nothing for --host-cache, --disk-cache, --remote-cache, --prefill-at or "
            "--prefill-from to keep."
        )
    if config.prefill_at and (config.replicas > 1 or config.also_serve):
        raise ConfigError(
            "--prefill-at is the address of one model process: leave out --replicas and --also-serve, and "
            "start a server for each."
        )
    if config.prefill_from and config.also_serve:
        raise ConfigError(
            "--prefill-from is that of one model: leave out --also-serve, and start a server for each model."
        )
    if "write_policy" in given and not tiers:
        raise ConfigError("--write-policy is that of --disk-cache and --remote-cache: give one of them too.")
    if "pin_memory" in given and not config.prefix_cache:
        raise ConfigError("--debug uncached leaves nothing to pin: leave it or --pin-memory out.")
    if config.kv_events and not config.prefix_cache:
        raise ConfigError("--debug uncached leaves nothing to publish: leave it or --kv-events out.")
    if config.kv_events and (problem := config.kv_events.find_problem(config.replicas)):
        raise ConfigError(f"--kv-events: {problem}")
    if config.remote_cache and find_spec("redis") is None:
        raise ConfigError(
            "--remote-cache: the package redis is missing; install it with "
            f"`{sys.executable} -m pip install redis`, or leave the option out."
        )
    if config.remote_cache:
        _check_remote(config.remote_cache)
    if config.uds and (both := [name for name in ("port", "ssl_certfile") if name in given]):
        flag = "--" + both[0].replace("_", "-")
        raise ConfigError(f"{flag} has no meaning for a Unix socket: leave it out.")
    if config.ssl_certfile:
        tls_context(config.ssl_certfile, config.ssl_keyfile)
    if "*" in config.allowed_origins and not config.api_keys:
        raise ConfigError(
            "--allowed-origin *: any web page could use a server without keys. Name the origins, or give an "
            "--api-key."
        )
    if config.otlp_traces_endpoint and not _has_exporter():
        raise ConfigError(
            "--otlp-traces-endpoint: OpenTelemetry's packages are missing; install them with "
            f"`{sys.executable} -m pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http`, or "
            "leave the option out."
        )
    if (config.isolate_keys or config.protect_metrics) and not config.api_keys:
        raise ConfigError(
            "--isolate: there are no keys to tell clients by; give each client an --api-key, or all keys in "
            "a file with --api-key @FILE."
        )


def _check_ranks(config: ServeConfig) -> None:
    """Raises ConfigError for options that ranks can't be combined with."""
    if config.tp == 1:
        return
    refused = {
        "--prefill-at and --prefill-from": config.moves_prefill,
        "--lora and --max-loras": config.adapter_places,
        "--model-impl transformers": config.model_impl == "transformers",
    }
    for options, is_given in refused.items():
        if is_given:
            raise ConfigError(
                f"--tp {config.tp}: ranks do not support {options}. Leave out one or the other."
            )


def _check_adapters(config: ServeConfig) -> None:
    """Raises ConfigError for adapters that can't all be served under their names."""
    names = [*config.model_names, *(name for name, _ in config.loras)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(f"--lora {twice[0]}: there are two models or adapters of this name; rename one.")
    if len(config.loras) > config.adapter_places:
        raise ConfigError(
            f"--max-loras {config.max_loras}: --lora names {len(config.loras)} adapters. Raise it, or leave "
            "it out."
        )
    if config.max_lora_rank is not None and not config.adapter_places:
        raise ConfigError("--max-lora-rank is that of adapters: give --lora or --max-loras too.")


def _check_models(config: ServeConfig, given: Collection[str]) -> None:
    """Raises ConfigError for several models of one name, or an option that only one of them could mean."""
    names = [*config.model_names, *(name for name, _ in config.also_serve)]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ConfigError(
            f"--also-serve {twice[0]}: two models have this name; give one of them another by NAME=MODEL."
        )
    alone = [name for name in ("lora", "max_loras", "chat_template", "kv_events") if name in given]
    if config.also_serve and alone:
        raise ConfigError(
            f"--{alone[0].replace('_', '-')} is that of one model: leave out --also-serve, and start a "
            "server for each model."
        )


def _check_remote(url: str) -> None:
    import redis

    try:
        redis.Redis.from_url(url)
    except ValueError as error:
        shown = re.sub("//.*@", "//…@", url)  # hides a password
        raise ConfigError(f"--remote-cache {shown}: {error}") from None


def _has_exporter() -> bool:
    """Whether the optional packages that export traces are installed."""
    try:
        return find_spec("opentelemetry.sdk") is not None and find_spec(EXPORTER) is not None
    except ModuleNotFoundError:  # raised if a parent package is missing
        return False


def _make_directory(directory: Path, label: str) -> None:
    """Makes a directory. Raises ConfigError if it can't be written to."""
    if problem := _why_unwritable(directory):
        raise ConfigError(
            f"{label} {directory}: {problem}; correct its name, choose another directory or leave the option "
            "out."
        )


def _why_unwritable(directory: Path) -> str | None:
    """Makes the directory. If that fails or it can't be written to, returns why."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with TemporaryFile(dir=directory):
            return None
    except OSError as error:
        return f"it can't be made or written ({error.strerror})"
