"""The pages of docs/: their links lead somewhere, and the files and functions that they name exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import arbora
import pytest
from arbora.runtime.messages import CacheControl

ROOT = Path(arbora.__file__).parent
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "howto").glob("*.md"), ROOT / "README.md"])
_LINK = re.compile(r"\]\((?!http)([^)#\s]*)(?:#([^)\s]+))?\)")
_CODE = re.compile(r"^```python\n.*?^```", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"`([\w./]+\.py)`")


_HOP = re.compile(r"^\| (\d+)[a-z]? \| `([\w./]+)` \| `([\w.]+)` \|", re.MULTILINE)
TOUR = (ROOT / "docs" / "request.md").read_text()


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def links() -> Iterator[tuple[str, str, str]]:
    for page in PAGES:
        for target, anchor in _LINK.findall(_CODE.sub("", page.read_text())):
            yield name_of(page), target or page.name, anchor


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes from headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(("page", "target", "anchor"), sorted(set(links())))
def test_every_link_leads_to_a_page_and_a_heading(page: str, target: str, anchor: str) -> None:
    path = (ROOT / page).parent / target
    assert path.exists()
    assert not anchor or anchor in anchors(path)


@pytest.fixture(scope="module")
def sources() -> set[str]:
    """The paths of all Python files, relative to the root."""
    return {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if ".venv" not in path.parts}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_that_a_page_names_exists(page: Path, sources: set[str]) -> None:
    for name in set(_FILE.findall(page.read_text())):
        assert any(source == name or source.endswith(f"/{name}") for source in sources), name


def test_the_index_has_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    listed = {f"docs/{name}" for name in re.findall(r"\]\(((?:howto/)?\w+\.md)\)", index)}
    assert {name_of(page) for page in PAGES} - {"README.md", "docs/README.md"} == listed


def test_every_message_to_the_cache_is_named() -> None:
    text = (ROOT / "docs" / "text.md").read_text().partition("## Messages to the cache")[2]
    assert [kind.__name__ for kind in get_args(CacheControl) if f"`{kind.__name__}`" not in text] == []


def defined(tree: ast.AST, names: list[str]) -> bool:
    """Whether a module or class defines `names[0]`, which defines `names[1]`, and so on."""
    if not names:
        return True
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    found = [each for each in ast.iter_child_nodes(tree) if isinstance(each, kinds) and each.name == names[0]]
    return any(defined(each, names[1:]) for each in found)


@pytest.mark.parametrize(("file", "function"), sorted({hop[1:] for hop in _HOP.findall(TOUR)}))
def test_every_function_of_the_tour_exists(file: str, function: str) -> None:
    assert defined(ast.parse((ROOT / file).read_text()), function.split("."))


def test_the_tour_counts_its_hops_and_files() -> None:
    chat = _HOP.findall(TOUR.partition("## A reply bound to a JSON schema")[0])
    assert [int(number) for number, _, _ in chat] == list(range(1, len(chat) + 1))
    assert f"{len(chat)} hops through {len({file for _, file, _ in chat})} files" in TOUR
