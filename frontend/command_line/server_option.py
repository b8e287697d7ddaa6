"""The options that name a server: `--url` and `--api-key`, with their variables."""

from __future__ import annotations

import argparse
import os

from ..option_values import split_keys

DEFAULT_URL = "http://127.0.0.1:8000"


def add_server(parser: argparse.ArgumentParser) -> None:
    url = os.environ.get("ARBORA_URL", DEFAULT_URL)
    key = next(iter(split_keys(os.environ.get("ARBORA_API_KEY", ""))), None)
    parser.add_argument("--url", default=url, metavar="URL", help=f"the server's address (default: {url})")
    parser.add_argument("--api-key", default=key, metavar="KEY", help="the key that the server asks for")
