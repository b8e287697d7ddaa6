"""Checks of Python, the packages and their versions."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from ....runtime.config import Device
from .machine import Finding

PACKAGE = "arbora"


def check_python() -> Finding:
    found = platform.python_version()
    wanted = distribution(PACKAGE).metadata["Requires-Python"]
    if SpecifierSet(wanted).contains(found, prereleases=True):
        return Finding("ok", f"{found} at {sys.executable}")
    return Finding("error", f"{found}, but Arbora needs {wanted}", "Install such a version of Python.")


def check_packages() -> Finding:
    """Checks whether each required package is installed in an allowed version."""
    wrong = list(_unmet())
    if not wrong:
        return Finding("ok", f"arbora {version(PACKAGE)}, and all that it requires")
    return Finding("error", "; ".join(wrong), f"Run `{sys.executable} -m pip install --upgrade arbora`.")


def _unmet() -> Iterator[str]:
    for text in distribution(PACKAGE).requires or ():
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(wanted.name)
        except PackageNotFoundError:
            yield f"{wanted.name} is missing"
            continue
        if not wanted.specifier.contains(found, prereleases=True):
            yield f"{wanted.name} is {found}, but {wanted.specifier} is needed"


def check_version(running: str) -> Finding:
    """Checks whether the metadata has the code's version. They differ after an update without an install."""
    installed = version(PACKAGE)
    if installed == running:
        return Finding("ok", f"code and installation are {running}")
    return Finding(
        "warning",
        f"the code is {running}, but {installed} is installed",
        "Run `pip install -e .` in the checkout, or `make serve`.",
    )


def check_torch(device: Device) -> Finding:
    import torch

    text = f"{torch.__version__}, built for {f'CUDA {torch.version.cuda}' if torch.version.cuda else 'CPUs'}"
    if device == "cuda" and torch.version.cuda is None:
        return Finding(
            "error", f"{text}, but this machine has a GPU", "Install a PyTorch that is built for CUDA."
        )
    return Finding("ok", text)


def check_triton(device: Device) -> Finding:
    if find_spec("triton") is not None:
        return Finding("ok", version("triton"))
    if device == "cuda":
        return Finding("error", "missing, but the GPU's kernels need it", "Run `pip install triton`.")
    return Finding("ok", "not installed; only a GPU needs it")
