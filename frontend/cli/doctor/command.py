"""`arbora doctor`: its options, and its findings as lines or JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from importlib import import_module

import msgspec

from ....runtime.option_values import whole_number
from ...launch.options import visible_device
from ..output import JSON_HELP, ReadValue, console, print_json
from .machine import Finding

DESCRIPTION = "Check what `arbora serve` needs of this machine. The exit code is 1 if a check finds an error."
EXAMPLE = "arbora doctor --port 8000"
_PACKAGE = __name__.partition(".")[0]
COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="(default: 127.0.0.1)")
    parser.add_argument(
        "--port",
        action=ReadValue,
        read=whole_number(0, 65535),
        default=8000,
        metavar="PORT",
        help="that a server would use (default: 8000)",
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def run(parsed: argparse.Namespace) -> int:
    found = []
    for name, finding in find(parsed.host, parsed.port):
        found.append({"name": name, **msgspec.structs.asdict(finding)})
        if not parsed.json:
            _print(name, finding)
    if parsed.json:
        print_json({"findings": found})
    return 1 if any(each["level"] == "error" for each in found) else 0


def find(host: str, port: int) -> Iterator[tuple[str, Finding]]:
    """Yields the name and the result of each check. A check that raises an exception counts as an error. The
    other checks still run."""
    from . import machine, software

    device = visible_device()
    checks: dict[str, Callable[[], Finding]] = {
        "python": software.check_python,
        "version": lambda: software.check_version(import_module(_PACKAGE).__version__),
        "packages": software.check_packages,
        "torch": lambda: software.check_torch(device),
        "triton": lambda: software.check_triton(device),
        "cpu": machine.check_cpu,
        "threads": machine.check_threads,
        "gpu": lambda: machine.check_gpu(device),
        "compiler": lambda: machine.check_compiler(device),
        "memory": machine.check_memory,
        "open files": machine.check_files,
        "kernel cache": machine.check_kernel_cache,
        "model cache": machine.check_hub_cache,
        "port": lambda: machine.check_port(host, port),
    }
    for name, check in checks.items():
        try:
            yield name, check()
        except Exception as error:  # a broken installation fails in many ways
            yield name, Finding("error", f"{type(error).__name__}: {error}", "Install arbora again.")


def _print(name: str, finding: Finding) -> None:
    from rich.text import Text

    line = Text.assemble((f"{finding.level:7}", COLOURS[finding.level]), f" {name:12} {finding.text}")
    screen = console()
    screen.print(line)
    if finding.fix:
        screen.print(Text(f"{'':20} {finding.fix}", "bold"))
