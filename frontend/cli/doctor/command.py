"""`arbora doctor`: its options, and its findings as lines or JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from importlib import import_module

from ....runtime.config import BUILTIN_MODEL, ServeConfig
from ....runtime.errors import ConfigError
from ....runtime.option_values import whole_number
from ...launch.listening import Listening
from ...launch.options import visible_device
from ..output import JSON_HELP, console, print_json
from .machine import Finding

DESCRIPTION = "Check what `arbora serve` needs of this machine. The exit code is 1 if a check finds an error."
EXAMPLE = "arbora doctor --port 8000"
_PACKAGE = __name__.partition(".")[0]
COLOURS = {"ok": "green", "warning": "yellow", "error": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="(default: 127.0.0.1)")
    parser.add_argument(
        "--port", default="8000", metavar="PORT", help="that a server would use (default: 8000)"
    )
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def run(parsed: argparse.Namespace) -> int:
    try:
        port = whole_number(0, 65535)(parsed.port)
    except ValueError as error:
        raise ConfigError(f"--port {parsed.port}: {error}") from None
    found = []
    for finding in findings(parsed.host, port):
        found.append(finding)
        if not parsed.json:
            _print(finding)
    if parsed.json:
        print_json({"findings": found})
    return 1 if any(finding.level == "error" for finding in found) else 0


def findings(host: str, port: int) -> Iterator[Finding]:
    """A check that fails itself is an error, and the others still run."""
    from . import machine, software

    device = visible_device()
    checks: dict[str, Callable[[], Finding]] = {
        "python": software.check_python,
        "version": lambda: software.check_version(import_module(_PACKAGE).__version__),
        "packages": software.check_packages,
        "torch": lambda: software.check_torch(device),
        "triton": lambda: software.check_triton(device),
        "cpu": machine.check_cpu,
        "gpu": lambda: machine.check_gpu(device),
        "compiler": lambda: machine.check_compiler(device),
        "memory": machine.check_memory,
        "open files": machine.check_files,
        "kernel cache": machine.check_kernel_cache,
        "model cache": machine.check_hub_cache,
        "port": lambda: machine.check_port(host, port, _listen),
    }
    for name, check in checks.items():
        try:
            yield check()
        except Exception as error:  # a broken installation fails in many ways
            yield Finding(name, "error", f"{type(error).__name__}: {error}", "Install arbora again.")


def _listen(host: str, port: int) -> None:
    Listening.open(ServeConfig(model=BUILTIN_MODEL, served_model_name="", host=host, port=port)).close()


def _print(finding: Finding) -> None:
    from rich.text import Text

    line = Text.assemble((f"{finding.level:7}", COLOURS[finding.level]), f" {finding.name:12} {finding.text}")
    screen = console()
    screen.print(line)
    if finding.fix:
        screen.print(Text(f"{'':20} {finding.fix}", "bold"))
