"""The options that name a server: `--url` and `--api-key`, with their variables."""

from __future__ import annotations

import argparse
import os
from urllib.parse import urlsplit

from ...runtime.errors import ConfigError
from ...runtime.option_values import read_key, split_keys
from ..launch.directory import find_servers
from ..launch.program_name import program_name
from .output import ReadValue

DEFAULT_URL = "http://127.0.0.1:8000"


def add_server(parser: argparse.ArgumentParser) -> None:
    url = os.environ.get("ARBORA_URL", DEFAULT_URL)
    keys = split_keys(os.environ.get("ARBORA_API_KEY", ""))
    key = next((key for key in keys if not key.startswith("@")), None)  # @FILE is a server's key file
    parser.add_argument("--url", default=url, metavar="URL", help=f"the server's address (default: {url})")
    parser.add_argument(
        "--api-key",
        action=ReadValue,
        read=read_key,
        default=key,
        metavar="KEY",
        help="the key that the server asks for",
    )


def server_url(url: str) -> str:
    """The value of `--url` with its scheme, which is http if the user gives none. Raises ConfigError."""
    if url.startswith("unix:"):
        raise ConfigError(
            f"--url {url}: this command needs an address such as {DEFAULT_URL}, not a Unix socket."
        )
    whole = url if "//" in url else f"http://{url}"
    if not _is_address(whole):
        raise ConfigError(f"--url {url}: expected an address such as {DEFAULT_URL}.")
    return whole


def no_answer(url: str, error: BaseException) -> ConfigError:
    """The error for a server that can't be reached, with the system's words for the reason."""
    error = root_cause(error)  # the HTTP client's own error names no reason
    is_refused = isinstance(error, ConnectionRefusedError)  # asyncio words it differently
    reason = "Connection refused" if is_refused else getattr(error, "strerror", None) or error
    running = [f"{each.url} ({each.model})" for each in find_servers() if each.url.startswith("http")]
    others = f" These servers run: {', '.join(running)}." if running else ""
    return ConfigError(
        f"no server answers at {url} ({reason}). Start one with `{program_name()} serve`, or name another "
        f"with --url.{others}"
    )


def root_cause(error: BaseException) -> BaseException:
    """The error that caused this one in the end. A group has an error for each address of a host: then the
    cause of the first."""
    if isinstance(error, BaseExceptionGroup):
        return root_cause(error.exceptions[0])
    inner = error.__cause__ or error.__context__
    return error if inner is None else root_cause(inner)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        return False
