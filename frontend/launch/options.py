"""Reads the options that are given, checks them together, and builds the configuration from them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from importlib.util import find_spec
from logging import getLogger
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

from ...runtime.api_keys import ApiKey, plain_key
from ...runtime.config import BUILTIN_MODEL, OPTIONS, Device, ServeConfig
from ...runtime.errors import ConfigError
from ...runtime.option_values import Option
from ..core.text.close_names import did_you_mean
from ..http.keys.key_file import check_beside, read_key_file
from ..http.tls import tls_context
from ..model_files.model_source import find_model, served_name

OTHER_VARIABLES = ("ARBORA_MODEL", "ARBORA_URL")
EXPORTER = "opentelemetry.exporter.otlp.proto.http"


class Setting(NamedTuple):
    """The value given for an option, and the name it was given under: `--port`, `ARBORA_PORT` or `port=`."""

    label: str
    value: object

    def read(self, option: Option) -> Any:
        """The option's value. Raises ConfigError."""
        try:
            return option.read(str(self.value))
        except ValueError as error:
            raise ConfigError(f"{self.label} {self.value}".rstrip() + f": {error}") from error


def from_environment(environment: Mapping[str, str] = os.environ) -> dict[str, Setting]:
    """The `ARBORA_*` variables that are not empty."""
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
    """The checked configuration. Downloads the model if needed, after `check` has seen the rest. Raises
    ConfigError."""
    given = {name: setting for name, setting in settings.items() if setting.value is not None}
    values: dict[str, Any] = {
        option.field: given[option.name].read(option) for option in OPTIONS if option.name in given
    }
    values.setdefault("device", visible_device())
    if "data_dir" not in values:
        values["data_dir"] = _make_default_data_directory()
    elif values["data_dir"] == "off":
        values["data_dir"] = None
    values |= _read_keys(given.get("api_key_file"), values)
    names = values.pop("more_model_names", None) or (served_name(model),)
    config = ServeConfig(
        model=BUILTIN_MODEL, served_model_name=names[0], more_model_names=names[1:], **values
    )
    _check_together(config, given)
    if config.disk_cache is not None:
        _make_directory(config.disk_cache, given["disk_cache"].label)
    if config.data_dir is not None and "data_dir" in given:
        _make_directory(config.data_dir, given["data_dir"].label)
    check(config)
    return replace(config, model=find_model(model))


def _read_keys(file: Setting | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the API keys: those given one by one, then those of the file. Raises ConfigError."""
    fixed = tuple(dict.fromkeys(map(plain_key, values.get("api_keys", ()))))
    keys: tuple[ApiKey, ...] = ()
    if file is not None:
        try:
            keys = read_key_file(values["api_key_file"])
            check_beside(fixed, keys)
        except ValueError as error:
            raise ConfigError(f"{file.label} {file.value}: {error}") from None
    return {"api_keys": (*fixed, *keys), "keys_of_file": len(keys)}


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
    tiers = config.host_cache or config.disk_cache or config.remote_cache
    if tiers and not config.prefix_cache:
        raise ConfigError(
            "--no-prefix-cache leaves nothing for --host-cache, --disk-cache or --remote-cache to keep."
        )
    if "write_policy" in given and not tiers:
        raise ConfigError("--write-policy is that of --disk-cache and --remote-cache: give one of them too.")
    if "pin_memory" in given and not config.prefix_cache:
        raise ConfigError("--no-prefix-cache leaves nothing to pin: leave it or --pin-memory out.")
    if "disk_cache_size" in given and not config.disk_cache:
        raise ConfigError("--disk-cache-size is that of --disk-cache: give its DIRECTORY too.")
    if "data_size" in given and not config.data_dir:
        raise ConfigError("--data-size has no meaning with --data-dir off: leave one of them out.")
    if config.remote_cache and find_spec("redis") is None:
        raise ConfigError(
            "--remote-cache: the package redis is missing; install it with "
            f"`{sys.executable} -m pip install redis`, or leave the option out."
        )
    if config.remote_cache:
        _check_remote(config.remote_cache)
    if config.uds and (both := [name for name in ("host", "port", "ssl_certfile") if name in given]):
        flag = "--" + both[0].replace("_", "-")
        raise ConfigError(f"{flag} has no meaning for a Unix socket: leave it or --uds out.")
    if config.ssl_certfile:
        tls_context(config.ssl_certfile, config.ssl_keyfile)
    elif config.ssl_keyfile:
        raise ConfigError("--ssl-keyfile is that of --ssl-certfile: give the certificate's FILE too.")
    if "*" in config.allowed_origins and not config.api_keys:
        raise ConfigError(
            "--allowed-origin *: any web page could use a server without keys. Name the origins, or give an "
            "--api-key or --api-key-file."
        )
    if config.protect_metrics and not config.api_keys:
        raise ConfigError(
            "--protect-metrics: there is no key to ask for; give an --api-key or --api-key-file."
        )
    if config.log_texts and config.log_requests != "json":
        raise ConfigError("--log-texts adds texts to JSON lines: give --log-requests json too.")
    if config.otlp_traces_endpoint and not _has_exporter():
        raise ConfigError(
            "--otlp-traces-endpoint: OpenTelemetry's packages are missing; install them with "
            f"`{sys.executable} -m pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http`, or "
            "leave the option out."
        )
    if config.isolate_keys and not config.api_keys:
        raise ConfigError(
            "--isolate-keys: there are no keys to tell clients by; give each client an --api-key, or "
            "all keys in an --api-key-file."
        )


def _check_remote(url: str) -> None:
    import redis

    try:
        redis.Redis.from_url(url)
    except ValueError as error:
        shown = re.sub("//.*@", "//…@", url)  # without a password
        raise ConfigError(f"--remote-cache {shown}: {error}") from None


def _has_exporter() -> bool:
    """Whether the optional packages that export traces are installed."""
    try:
        return find_spec("opentelemetry.sdk") is not None and find_spec(EXPORTER) is not None
    except ModuleNotFoundError:  # of a package around it
        return False


def _make_directory(directory: Path, label: str) -> None:
    """Raises ConfigError if the directory can't be written to."""
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
