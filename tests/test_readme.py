"""The README and the pages of docs/howto: their names exist, their commands parse, and their code prints what
they show."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import arbora
import pytest
from arbora.frontend.cli.main import build_parser
from arbora.frontend.engine.options import HTTP_ONLY
from arbora.frontend.model_files.known_models import find_known
from arbora.runtime.config import BUILTIN_MODEL, OPTIONS
from served import PATIENCE, Served, serve

ROOT = Path(arbora.__file__).parent
README = (ROOT / "README.md").read_text()
API = (ROOT / "docs" / "api.md").read_text()
HOW_TO = sorted((ROOT / "docs" / "howto").glob("*.md"))
PAGES = [ROOT / "README.md", *HOW_TO]
TESTED_ELSEWHERE = {"langchain.md"}
"""pages whose code needs other packages: tests/clients"""
ADDRESS = "http://127.0.0.1:8000"


def blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


WITH_CODE = [page for page in PAGES if blocks(page, "python") and page.name not in TESTED_ELSEWHERE]
COMMANDS = [
    (page.name, line.strip())
    for page in PAGES
    for block in blocks(page, "bash")
    for line in block.splitlines()
    if re.match(r"(?:\.venv/bin/)?arbora ", line)
]


@pytest.fixture(scope="module")
def builtin() -> Iterator[Served]:
    with serve(BUILTIN_MODEL, "--kv-memory", "128MiB") as server:
        yield server


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_the_code_of_a_page_prints_what_the_page_shows(builtin: Served, page: Path) -> None:
    builtin.http.delete("/cache")
    code = "\n".join(blocks(page, "python"))
    assert ADDRESS in code
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code.replace(ADDRESS, builtin.url)],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_PROXY": "*"},
        timeout=5 * PATIENCE,  # the first grammar may wait until its kernels are compiled
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "".join(blocks(page, "text"))


def test_curl_gets_a_reply(builtin: Served) -> None:
    (command,) = (block for block in blocks(ROOT / "README.md", "bash") if block.startswith("curl "))
    words = shlex.split(command.replace(ADDRESS, builtin.url))
    direct = [*words, "--silent", "--noproxy", "*"]
    answer = json.loads(subprocess.run(direct, capture_output=True, check=True).stdout)
    assert answer["choices"][0]["message"]["content"] == "Nice to meet you, Ada!"


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_every_command_of_a_page_can_be_parsed(page: str, command: str) -> None:
    _, *arguments = shlex.split(command, comments=True)
    build_parser(arguments[:1]).parse_args(arguments)


def test_the_readme_can_be_read_in_ten_minutes() -> None:
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.name)
def test_a_how_to_page_is_short(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= 90


def test_every_flag_it_names_is_an_option() -> None:
    flags = {option.flag for option in OPTIONS}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", README)) - {"--help"} <= flags


def test_the_api_names_the_options_that_an_engine_lacks() -> None:
    sentence = API[API.index("The options of `Engine` are") :].partition(". ")[0]
    assert set(re.findall(r"`(\w+)`", sentence.partition("except")[2])) == set(HTTP_ONLY)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_target_of_make_it_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text()
    named = re.findall(r"`make ([a-z-]+)", text) + re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)
    assert set(named) <= targets


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\barbora\.([A-Z]\w*)", README + API))))
def test_every_name_of_the_package_it_uses_exists(name: str) -> None:
    assert name in arbora.__all__ and getattr(arbora, name)


def test_which_model_names_well_known_models() -> None:
    rows = re.findall(r"^\| \d+ GB .*$", (ROOT / "docs/howto/which_model.md").read_text(), re.MULTILINE)
    names = re.findall(r"`([^`]+)`", "".join(rows))
    assert len(names) > 8 and [name for name in names if find_known(name) is None] == []


@pytest.mark.parametrize("path", re.findall(r"\]\(((?!http)[^)#]+)", README))
def test_every_file_it_links_to_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", README + API, re.DOTALL))
def test_every_example_is_python(example: str) -> None:
    assert ast.parse(example).body
