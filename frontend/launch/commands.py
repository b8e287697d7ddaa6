"""The commands that start a server's children, as values, so that tests can start others."""

from __future__ import annotations

import sys
from typing import NamedTuple

from .child_process import Command

# PyTorch's threads spin for a moment between operations, then sleep: the other processes share their
# cores. Huge pages for what malloc gives: weights are read through fewer page-table entries.
_MODEL_DEFAULTS = {"GOMP_SPINCOUNT": "1000", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
_PACKAGE = __name__.partition(".")[0]


class Commands(NamedTuple):
    """One replica (scheduler and model) and any number of tokenizer processes."""

    scheduler: Command
    model: Command
    tokenizers: tuple[Command, ...]


def replica_commands() -> Commands:
    """A replica whose client is in this process."""
    model = _module("model", "runtime.model")._replace(defaults=_MODEL_DEFAULTS)
    return Commands(_module("scheduler", "runtime.scheduler"), model, ())


def server_commands(tokenizers: int = 1) -> Commands:
    """A replica, and as many tokenizer processes, which serve HTTP."""
    return replica_commands()._replace(tokenizers=(_module("tokenizer", "frontend.app"),) * tokenizers)


def _module(role: str, folder: str) -> Command:
    return Command(role, (sys.executable, "-m", f"{_PACKAGE}.{folder}.process"))
