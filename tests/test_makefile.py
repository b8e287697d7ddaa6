"""`make` compiles once for each version of the compiled sources, without installing again.

`make serve` passes HOST and PORT to the server.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import arbora
import pytest
from arbora.runtime.compiled_code import SHARED

ROOT = Path(arbora.__file__).parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory in which everything is installed and compiled."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for folder in ("grammars/masks", "kernels", "runtime", ".venv/bin"):
        (tmp_path / folder).mkdir(parents=True)
    shared = (str(file.relative_to(ROOT)) for file in SHARED)
    sources = ("grammars/masks/walks.py", "kernels/cpu.py", *shared)
    for name in (*sources, ".venv/bin/python", ".venv/.installed"):
        (tmp_path / name).write_text("")
    finish(tmp_path)
    return tmp_path


def planned(checkout: Path, *arguments: str, **environment: str) -> str:
    """The commands that make would run; without arguments, those of `make serve`."""
    result = run(checkout, "--dry-run", *(arguments or ("serve",)), **environment)
    result.check_returncode()
    return result.stdout


def run(checkout: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs make, which is not told that another make runs the tests."""
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")} | environment
    return subprocess.run(["make", *arguments], cwd=checkout, env=alone, capture_output=True, text=True)


def finish(checkout: Path) -> None:
    """Writes the marks that make's set-up steps leave."""
    for mark in re.findall(r"^touch (.*)$", planned(checkout), re.MULTILINE):
        (checkout / mark).touch()


def test_nothing_is_compiled_twice(checkout: Path) -> None:
    commands = planned(checkout)
    assert "precompile" not in commands and "pip" not in commands
    assert commands.splitlines()[-1].split() == ["exec", ".venv/bin/arbora", "serve"]


@pytest.mark.parametrize("port", ["80000", "-1", "http", "123456"])
def test_a_port_that_cannot_be_is_refused_before_anything_is_installed(checkout: Path, port: str) -> None:
    (checkout / ".venv/.installed").unlink()
    refused = run(checkout, "serve", f"PORT={port}")
    assert refused.returncode != 0
    assert refused.stdout.startswith(f"PORT={port}: expected a whole number from 0 to 65535")
    assert "set-up" not in refused.stdout


@pytest.mark.skipif(shutil.which("flock") is None, reason="without flock two makes do compile twice")
def test_two_servers_that_are_started_at_once_compile_once(checkout: Path) -> None:
    for name, script in (("python", 'echo "$@" >> compiled; sleep 1'), ("arbora", 'echo "serves $@"')):
        (checkout / ".venv/bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (checkout / ".venv/bin" / name).chmod(0o755)
    (checkout / ".venv/.installed").touch()
    (checkout / "kernels/cpu.py").write_text("A = 1")
    with ThreadPoolExecutor() as both:
        first, second = both.map(lambda port: run(checkout, "serve", f"PORT={port}"), ("1", "2"))
    assert "serves serve --port 1" in first.stdout and "serves serve --port 2" in second.stdout
    assert (first.stdout + second.stdout).count("set-up done") == 1
    compiled = (checkout / "compiled").read_text().splitlines()
    assert sorted(compiled) == ["-m arbora.grammars.service.precompile", "-m arbora.kernels.precompile"]


def test_host_and_port_on_makes_command_line_reach_the_server(checkout: Path) -> None:
    given = ("serve", "MODEL=tiny", "PORT=1234", "HOST=::1", "ARGS=--step-ms 9")
    *_, flags = planned(checkout, *given).partition("arbora serve ")
    assert flags.split() == ["tiny", "--host", "::1", "--port", "1234", "--step-ms", "9"]
    for_other_programs = {"HOST": "x86_64-conda-linux-gnu", "PORT": "1234"}
    assert planned(checkout, **for_other_programs).split()[-1] == "serve"


def test_a_misspelt_variable_is_refused(checkout: Path) -> None:
    refused = run(checkout, "serve", "MODLE=tiny", "ARGS=--step-ms=9 --port 1")
    assert refused.returncode != 0
    assert "there is no variable MODLE: make serve takes MODEL, HOST, PORT and ARGS." in refused.stderr


def test_help_lists_the_targets(checkout: Path) -> None:
    lines = run(checkout, "help").stdout.splitlines()
    assert lines[0].startswith("make serve ") and lines[-1].startswith("make help ")


def test_the_benchmarks_without_a_server_come_before_the_one_that_needs_it(checkout: Path) -> None:
    (checkout / ".venv/.installed-for-tests").write_text("")
    assert "bench/serve.py" in planned(checkout, "bench").splitlines()[-1]


@pytest.mark.parametrize("target", ["serve", "test", "bench"])
@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "kernels/cpu.py").write_text("A = 1"),
        lambda root: (root / "grammars/masks/walks.py").write_text("A = 1"),
        lambda root: (root / "grammars/masks/more.py").write_text(""),
        lambda root: (root / "kernels/cpu.py").unlink(),
        lambda root: (root / SHARED[0].relative_to(ROOT)).write_text("DEAD = 0"),
        lambda root: (root / SHARED[1].relative_to(ROOT)).write_text("DEAD = 0"),
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
