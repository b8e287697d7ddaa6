"""The names in the README exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import arbora
import pytest
from arbora.frontend.engine.options import HTTP_ONLY
from arbora.runtime.config import OPTIONS

ROOT = Path(arbora.__file__).parent
README = (ROOT / "README.md").read_text()


def test_every_flag_it_names_is_an_option() -> None:
    flags = {option.flag for option in OPTIONS}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", README)) - {"--help"} <= flags


def test_it_names_the_options_that_an_engine_lacks() -> None:
    sentence = README[README.index("The options of `Engine` are") :].partition(". ")[0]
    assert set(re.findall(r"`(\w+)`", sentence.partition("except")[2])) == set(HTTP_ONLY)


def test_every_target_of_make_it_names_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", README)) <= targets


@pytest.mark.parametrize("name", re.findall(r"\barbora\.([A-Z]\w*)", README))
def test_every_name_of_the_package_it_uses_exists(name: str) -> None:
    assert name in arbora.__all__ and getattr(arbora, name)


@pytest.mark.parametrize("path", re.findall(r"\]\(((?!http)[^)#]+)", README))
def test_every_file_it_links_to_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_every_example_is_python(example: str) -> None:
    assert ast.parse(example).body
