"""`make` compiles once for each version of the compiled sources, without installing again.

`make serve` passes HOST and PORT to the server.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import arbora
import pytest
from arbora.runtime.compiled_code import FORMAT

ROOT = Path(arbora.__file__).parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory in which everything is installed and compiled."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for folder in ("grammars/masks", "kernels", "runtime", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    sources = ("grammars/masks/walks.py", "kernels/cpu.py", str(FORMAT.relative_to(ROOT)))
    for name in (*sources, ".venv/bin/python", ".venv/.installed"):
        (tmp_path / name).write_text("")
    finish(tmp_path)
    return tmp_path


def planned(checkout: Path, *arguments: str, **environment: str) -> str:
    """The commands that make would run; without arguments, those of `make serve`."""
    command = ["make", "--dry-run", *(arguments or ("serve",))]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")} | environment
    return subprocess.run(command, cwd=checkout, env=alone, capture_output=True, text=True, check=True).stdout


def finish(checkout: Path) -> None:
    """Writes the marks that make's set-up steps leave."""
    for mark in re.findall(r"^touch (.*)$", planned(checkout), re.MULTILINE):
        (checkout / mark).touch()


def test_nothing_is_compiled_twice(checkout: Path) -> None:
    assert planned(checkout).split() == ["exec", ".venv/bin/arbora", "serve"]


def test_host_and_port_on_makes_command_line_reach_the_server(checkout: Path) -> None:
    given = ("serve", "MODEL=tiny", "PORT=1234", "HOST=::1", "ARGS=--step-ms 9")
    *_, flags = planned(checkout, *given).partition("arbora serve ")
    assert flags.split() == ["tiny", "--host", "::1", "--port", "1234", "--step-ms", "9"]
    for_other_programs = {"HOST": "x86_64-conda-linux-gnu", "PORT": "1234"}
    assert planned(checkout, **for_other_programs).split()[-1] == "serve"


@pytest.mark.parametrize("target", ["serve", "test", "bench"])
@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "kernels/cpu.py").write_text("A = 1"),
        lambda root: (root / "grammars/masks/walks.py").write_text("A = 1"),
        lambda root: (root / "grammars/masks/more.py").write_text(""),
        lambda root: (root / "kernels/cpu.py").unlink(),
        lambda root: (root / FORMAT.relative_to(ROOT)).write_text("DEAD = 0"),
    ],
)
def test_changed_sources_are_compiled_and_nothing_is_installed(
    checkout: Path, change: Callable[[Path], object], target: str
) -> None:
    (checkout / ".venv/.installed-for-tests").write_text("")
    change(checkout)
    commands = planned(checkout, target)
    assert commands.count("precompile") == 2
    assert "pip" not in commands


def test_sources_that_were_compiled_before_are_not_compiled_again(checkout: Path) -> None:
    source = checkout / "kernels/cpu.py"
    source.write_text("A = 1")
    finish(checkout)
    source.write_text("")
    assert "precompile" not in planned(checkout)


def test_a_new_list_of_packages_is_installed_and_compiled(checkout: Path) -> None:
    (checkout / ".venv/.installed").unlink()
    commands = planned(checkout)
    assert commands.index("install") < commands.index("precompile")
