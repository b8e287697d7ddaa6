"""Counts that say how easy the package is to read: sizes, arguments, types, import circles, by folder.

An import circle is a set of files (or folders) that all reach each other by imports. Arguments are counted
without `self` and `cls`; the attributes of a class are its fields and the names its methods assign on `self`.
Run: python bench/house.py [--at REVISION] [--names] [--excerpts 12 --seed 1]
"""

from __future__ import annotations

import argparse
import ast
import io
import random
import subprocess
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MAX_LINES = 60  # of a function
MAX_ARGUMENTS = 7
MAX_ATTRIBUTES = 15
MAX_FILE_LINES = 400
COMPILERS = ("njit", "jit", "intrinsic", "compiled", "compiled_fast", "inlined", "ParallelKernel")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Graph = Mapping[str, set[str]]


class Module(NamedTuple):
    path: Path  # from the root
    name: str  # `grammars.masks.walks`; a package has its own name
    lines: int
    tree: ast.Module

    @property
    def folder(self) -> str:
        return str(self.path.parent)


class Counts(NamedTuple):
    files: int = 0
    lines: int = 0
    functions: int = 0
    long_functions: int = 0
    many_arguments: int = 0
    classes: int = 0
    many_attributes: int = 0
    untyped: int = 0
    untyped_kernels: int = 0  # of numba and Triton, which need no annotations
    long_files: int = 0


HEADINGS = (
    "files",
    "lines",
    "functions",
    f">{MAX_LINES} lines",
    f">{MAX_ARGUMENTS} arguments",
    "classes",
    f">{MAX_ATTRIBUTES} attributes",
    "untyped",
    "untyped kernels",
    f"files >{MAX_FILE_LINES}",
)


def main() -> None:
    options = parse_options()
    with tempfile.TemporaryDirectory() as folder:
        root = ROOT
        if options.at:
            root = Path(folder)
            unpack_revision(options.at, root)
        modules = list(read_modules(root))
    if options.excerpts:
        print_excerpts(modules, options.excerpts, options.seed)
        return
    print_table(modules)
    imports = {module.name: set(imports_of(module, modules)) for module in modules}
    print_circles("files", circles(imports))
    print_circles("folders", circles(between_folders(imports, modules)))
    if options.names:
        print("\n".join(sorted(named_excesses(modules))))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--at", metavar="REVISION", help="count this git revision, not the working tree")
    parser.add_argument(
        "--names", action="store_true", help="name the functions, classes and files over a limit"
    )
    parser.add_argument(
        "--excerpts", type=int, default=0, metavar="N", help="print N random docstrings instead"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the random choice (%(default)s)")
    return parser.parse_args()


def unpack_revision(revision: str, folder: Path) -> None:
    command = ["git", "-C", str(ROOT), "archive", revision]
    archive = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")


def read_modules(root: Path) -> Iterator[Module]:
    """The modules of every package that pyproject.toml lists."""
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    for package in listed:
        folder = root.joinpath(*package.split(".")[1:])
        for file in sorted(folder.glob("*.py")):
            path, text = file.relative_to(root), file.read_text()
            parts = path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts
            yield Module(path, ".".join(parts), len(text.splitlines()), ast.parse(text))


def print_table(modules: list[Module]) -> None:
    rows = [(folder, count(m for m in modules if m.folder == folder)) for folder in folders_of(modules)]
    rows.append(("all", count(modules)))
    print("| folder |", " | ".join(HEADINGS), "|")
    print("|---|" + "--:|" * len(HEADINGS))
    for folder, counts in rows:
        print(f"| {folder} |", " | ".join(f"{number:,}" for number in counts), "|")


def folders_of(modules: Iterable[Module]) -> list[str]:
    return sorted({module.folder for module in modules})


def count(modules: Iterable[Module]) -> Counts:
    modules = list(modules)
    functions = [node for module in modules for node in functions_of(module)]
    classes = [node for module in modules for node in classes_of(module)]
    untyped = [node for node in functions if not is_typed(node)]
    kernels = {node for module in modules for node in kernels_of(module)}
    return Counts(
        files=len(modules),
        lines=sum(module.lines for module in modules),
        functions=len(functions),
        long_functions=sum(lines_of(node) > MAX_LINES for node in functions),
        many_arguments=sum(len(arguments_of(node)) > MAX_ARGUMENTS for node in functions),
        classes=len(classes),
        many_attributes=sum(len(attributes_of(node)) > MAX_ATTRIBUTES for node in classes),
        untyped=sum(node not in kernels for node in untyped),
        untyped_kernels=sum(node in kernels for node in untyped),
        long_files=sum(module.lines > MAX_FILE_LINES for module in modules),
    )


def functions_of(module: Module) -> list[Function]:
    return [node for node in ast.walk(module.tree) if isinstance(node, Function)]


def classes_of(module: Module) -> list[ast.ClassDef]:
    return [node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)]


def lines_of(function: Function) -> int:
    """The lines of a function from `def` to its end, without decorators."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


def arguments_of(function: Function) -> list[ast.arg]:
    every = function.args
    listed = [*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg]
    return [argument for argument in listed if argument and argument.arg not in ("self", "cls")]


def attributes_of(node: ast.ClassDef) -> set[str]:
    fields = {item.target.id for item in node.body if is_field(item)}  # type: ignore[attr-defined]
    assigned = {
        target.attr
        for target in ast.walk(node)
        if isinstance(target, ast.Attribute)
        and isinstance(target.ctx, ast.Store)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    }
    return fields | assigned


def is_field(item: ast.stmt) -> bool:
    return isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)


def is_typed(function: Function) -> bool:
    has_return = function.returns is not None or function.name == "__init__"
    return has_return and all(each.annotation for each in arguments_of(function))


def kernels_of(module: Module) -> set[Function]:
    """The functions that numba or Triton compiles, and the functions in them."""
    compiled = [node for node in functions_of(module) if any(map(is_compiler, node.decorator_list))]
    return {inner for node in compiled for inner in ast.walk(node) if isinstance(inner, Function)}


def is_compiler(decorator: ast.expr) -> bool:
    nodes = list(ast.walk(decorator))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return not names.isdisjoint(COMPILERS)


def imports_of(module: Module, modules: Iterable[Module]) -> Iterator[str]:
    """The package's modules that a module imports, including imports in functions and for types only."""
    known = {each.name for each in modules}
    package = module.path.parent.parts
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            origin = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:
                name = f"{origin}.{alias.name}".lstrip(".")
                yield name if name in known else origin


def between_folders(imports: Graph, modules: Iterable[Module]) -> Graph:
    folder_of = {module.name: module.folder for module in modules}
    graph: dict[str, set[str]] = {folder: set() for folder in folder_of.values()}
    for name, targets in imports.items():
        graph[folder_of[name]] |= {folder_of[target] for target in targets} - {folder_of[name]}
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """The strongly connected components of more than one node, the largest first."""
    reached = {node: reach(graph, node) for node in graph}
    found = {
        frozenset(other for other in reached[node] if node in reached[other])
        for node in graph
        if node in reached[node]
    }
    return sorted(
        (sorted(circle) for circle in found if len(circle) > 1), key=lambda names: (-len(names), names)
    )


def reach(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph.get(waiting.pop(), set()) - seen
        seen |= new
        waiting += new
    return seen


def print_circles(kind: str, found: list[list[str]]) -> None:
    print(f"\nimport circles of {kind}: {len(found)}")
    for circle in found:
        print(f"- {len(circle)} {kind}: {', '.join(circle)}")


def named_excesses(modules: Iterable[Module]) -> Iterator[str]:
    for module in modules:
        if module.lines > MAX_FILE_LINES:
            yield f"file {module.path}: {module.lines} lines"
        kernels = kernels_of(module)
        for function in functions_of(module):
            place = f"{module.path}:{function.lineno} {function.name}"
            if lines_of(function) > MAX_LINES:
                yield f"function {place}: {lines_of(function)} lines"
            if len(arguments_of(function)) > MAX_ARGUMENTS:
                yield f"function {place}: {len(arguments_of(function))} arguments"
            if not is_typed(function) and function not in kernels:
                yield f"function {place}: untyped"
        for node in classes_of(module):
            if len(attributes_of(node)) > MAX_ATTRIBUTES:
                yield f"class {module.path}:{node.lineno} {node.name}: {len(attributes_of(node))} attributes"


def print_excerpts(modules: Iterable[Module], number: int, seed: int) -> None:
    documented = [
        (module.path, getattr(node, "name", "module"), text)
        for module in modules
        for node in (module.tree, *functions_of(module), *classes_of(module))
        if (text := ast.get_docstring(node))
    ]
    for path, name, text in random.Random(seed).sample(documented, min(number, len(documented))):
        print(f"{path} {name}\n    " + text.replace("\n", "\n    ") + "\n")


if __name__ == "__main__":
    main()
