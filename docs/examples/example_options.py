"""What all examples share: the address of the server, and a line about the cache."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import arbora as ab


def parser(description: str | None) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=description)
    options.add_argument(
        "--url", default="http://127.0.0.1:8000", help="a running server (default: %(default)s)"
    )
    return options


def connected(options: argparse.ArgumentParser) -> argparse.Namespace:
    """The options of the command line. Programs run on their server."""
    values = options.parse_args()
    ab.set_default_backend(ab.connect(values.url))
    return values


def print_cached_share(states: Sequence[Any]) -> None:
    """`states`: what `run` or `run_batch` returned."""
    print("\n" + reduce(add, (state.trace for state in states)).summary())
