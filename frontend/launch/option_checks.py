"""Checks of options that depend on other options, on the machine or on files."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ...runtime.api_keys import ApiKey
from ...runtime.errors import ConfigError
from ..http.keys.key_file import KeyFile, check_beside
from ..http.tls import tls_context

EXPORTER = "opentelemetry.exporter.otlp.proto.http"


def check_together(values: Mapping[str, Any], given: Collection[str]) -> None:
    """Raises ConfigError for options that would have no effect or can't be used together."""
    if values["device"] == "cuda" and values["deterministic"]:
        raise ConfigError(
            "--deterministic: only the CPU kernels keep that promise, those for CUDA don't. Leave it out, or "
            "use --device cpu."
        )
    if values["device"] == "cpu" and values["kv_dtype"] == "fp8":
        raise ConfigError(
            "--kv-dtype fp8: only the CUDA kernels read it, those for CPUs don't. Use --kv-dtype int8, which "
            "takes the same memory, or --device cuda."
        )
    tiers = values["host_cache"] or values["disk_cache"] or values["remote_cache"]
    if tiers and not values["prefix_cache"]:
        raise ConfigError(
            "--no-prefix-cache leaves nothing for --host-cache, --disk-cache or --remote-cache to keep."
        )
    if "write_policy" in given and not tiers:
        raise ConfigError("--write-policy is that of --disk-cache and --remote-cache: give one of them too.")
    if "pin_memory" in given and not values["prefix_cache"]:
        raise ConfigError("--no-prefix-cache leaves nothing to pin: leave it or --pin-memory out.")
    if "disk_cache_size" in given and not values["disk_cache"]:
        raise ConfigError("--disk-cache-size is that of --disk-cache: give its DIRECTORY too.")
    if "data_size" in given and not values["data_dir"]:
        raise ConfigError("--data-size has no meaning with --data-dir off: leave one of them out.")
    if values["remote_cache"] and find_spec("redis") is None:
        raise ConfigError(
            "--remote-cache: the package redis is missing; install it with "
            f"`{sys.executable} -m pip install redis`, or leave the option out."
        )
    if values["remote_cache"]:
        _check_remote(values["remote_cache"])
    if values["uds"] and (both := [name for name in ("host", "port", "ssl_certfile") if name in given]):
        flag = "--" + both[0].replace("_", "-")
        raise ConfigError(f"{flag} has no meaning for a Unix socket: leave it or --uds out.")
    if values["ssl_certfile"]:
        tls_context(values["ssl_certfile"], values["ssl_keyfile"])
    elif values["ssl_keyfile"]:
        raise ConfigError("--ssl-keyfile is that of --ssl-certfile: give the certificate's FILE too.")
    if "*" in values["allowed_origins"] and not values["api_keys"]:
        raise ConfigError(
            "--allowed-origin *: any web page could use a server without keys. Name the origins, or give an "
            "--api-key or --api-key-file."
        )
    if values["protect_metrics"] and not values["api_keys"]:
        raise ConfigError(
            "--protect-metrics: there is no key to ask for; give an --api-key or --api-key-file."
        )
    if values["log_texts"] and values["log_requests"] != "json":
        raise ConfigError("--log-texts adds texts to JSON lines: give --log-requests json too.")
    if values["otlp_traces_endpoint"] and not has_exporter():
        raise ConfigError(
            "--otlp-traces-endpoint: OpenTelemetry's packages are missing; install them with "
            f"`{sys.executable} -m pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http`, or "
            "leave the option out."
        )
    if values["isolate_keys"] and not values["api_keys"]:
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


def check_keys(fixed: Collection[ApiKey], file: KeyFile, label: str) -> None:
    """Raises ConfigError for a key with limits in the file that --api-key gives without them."""
    try:
        check_beside(fixed, file.keys)
    except ValueError as error:
        raise ConfigError(f"{label} {file.path}: {error}") from None


def has_exporter() -> bool:
    """Whether the optional packages that export traces are installed."""
    try:
        return find_spec("opentelemetry.sdk") is not None and find_spec(EXPORTER) is not None
    except ModuleNotFoundError:  # of a package around it
        return False


def make_directory(directory: Path, label: str) -> None:
    """Raises ConfigError if the directory can't be written to."""
    if problem := unwritable(directory):
        raise ConfigError(
            f"{label} {directory}: {problem}; correct its name, choose another directory or leave the option "
            "out."
        )


def unwritable(directory: Path) -> str | None:
    """Makes the directory. If that fails or it can't be written to, returns why."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with TemporaryFile(dir=directory):
            return None
    except OSError as error:
        return f"it can't be made or written ({error.strerror})"
