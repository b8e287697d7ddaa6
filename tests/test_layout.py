"""The layout of the package: its folders, the imports between them, and the modules that an import loads."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import arbora
import pytest

ROOT = Path(arbora.__file__).parent
FOLDERS = ("frontend", "grammars", "kernels", "radix_cache", "runtime")
SHARED = (
    "api_keys",
    "automaton_format",
    "byte_sizes",
    "cache_directory",
    "cgroups",
    "checkpoint_json",
    "config",
    "errors",
    "event_sockets",
    "families",
    "gguf_families",
    "gguf_file",
    "grammar_spec",
    "logs",
    "messages",
    "option_values",
    "processes",
    "sampling_params",
    "system_cores",
    "system_memory",
    "type_mismatch",
    "vocabulary",
    "zmq_address",
)
SHARED_MODULES = {f"runtime.{name}" for name in SHARED}
SPEC = {"runtime.grammar_spec"}
CODE = {"runtime.compiled_code", "runtime.loaded_code", "runtime.cache_directory"}
FORMAT = {"runtime.automaton_format", "runtime.json_gaps"}
KERNEL_DECORATOR = re.compile(
    r"compiled(_fast)?$|inlined$|insert_into_caller$|intrinsic$|emits\b|njit\(|ParallelKernel$|triton\.jit\b"
)
"""Functions with such a decorator are kernels, whose parameters have no types in Python."""
COMPILED = {"grammars.errors", "grammars.jit"} | FORMAT
SCHEMA = SPEC | COMPILED | {"grammars.machine", "grammars.regex", "grammars.schema.lexical"}
MAY_IMPORT = {
    "frontend.core.work": SHARED_MODULES,
    "frontend.core": SHARED_MODULES | {"frontend.core"},
    "frontend.http": SHARED_MODULES | {"frontend.core"},
    "frontend.api": SHARED_MODULES | {"frontend.core", "frontend.http"},
    "frontend.stored.records": {"runtime.errors", "frontend.core"},
    "frontend.stored": SHARED_MODULES
    | {"frontend.core", "frontend.http", "frontend.api", "frontend.stored.records"},
    "frontend.cache_reports": SHARED_MODULES | {"frontend.core", "frontend.http"},
    "frontend.page": {"frontend.http"},
    "frontend.app": SHARED_MODULES | {"frontend"},
    "frontend.ray_serve": SHARED_MODULES | {"frontend"},
    "frontend.model_files": SHARED_MODULES
    | {
        "frontend.core",
        "runtime.model.model_source",
        "runtime.model.pooling_config",
        "runtime.model.weight_formats",
    },
    "frontend.launch": SHARED_MODULES | {"frontend.http", "frontend.core", "frontend.model_files"},
    "frontend.fleet": SHARED_MODULES | {"frontend.core", "runtime.scheduler", "radix_cache", "grammars"},
    "frontend.engine": SHARED_MODULES | {"frontend.core", "frontend.launch", "frontend.model_files"},
    "frontend.language": {"frontend.engine", "frontend.launch", "frontend.core", "runtime.errors"},
    "frontend.cli": SHARED_MODULES | {"frontend"},
    "frontend.cli.bench": SHARED_MODULES
    | {"frontend.cli", "frontend.launch", "frontend.language.api_client"},
    "frontend.cli.chat": SHARED_MODULES
    | {"frontend.cli", "frontend.launch", "frontend.core", "frontend.language.api_client"},
    "frontend.cli.doctor": SHARED_MODULES | {"frontend.cli", "frontend.launch", "runtime.model.devices"},
    "frontend.cli.plan": SHARED_MODULES
    | {
        "frontend.cli",
        "frontend.launch",
        "frontend.model_files",
        "frontend.core",
        "frontend.fleet",
        "runtime.model",
        "runtime.scheduler.step_records",
        "kernels.linear",
    },
    "frontend": SHARED_MODULES,
    "runtime.scheduler": SHARED_MODULES | {"radix_cache", "grammars"},
    "runtime.model": SHARED_MODULES | {"kernels", "runtime.compiled_code"},
    "runtime": SHARED_MODULES,
    "radix_cache": set[str](),
    "grammars": {"grammars"},
    "grammars.errors": set[str](),
    "grammars.jit": CODE,
    "grammars.machine": COMPILED,
    "grammars.masks": COMPILED | {"grammars.machine"},
    "grammars.regex": COMPILED | {"grammars.machine"} | SPEC,
    "grammars.schema.lexical": COMPILED | {"grammars.machine", "grammars.regex"},
    "grammars.schema.read": SCHEMA,
    "grammars.schema.solve": SCHEMA | {"grammars.schema.read"},
    "grammars.schema.emit": SCHEMA | {"grammars.schema.read", "grammars.schema.solve"},
    "grammars.schema": SCHEMA | {"grammars.schema"},
    "grammars.tags": SCHEMA | {"grammars.schema"},
    "grammars.processes": COMPILED | SPEC | {"grammars.machine", "runtime.system_memory"},
    "grammars.host": SCHEMA | {f"grammars.{name}" for name in ("schema", "tags", "processes")},
    "grammars.service": {"grammars", "runtime.vocabulary"} | SPEC | CODE | FORMAT,
    "kernels": CODE | FORMAT | {"runtime.system_cores"},
}


@cache
def modules() -> dict[str, Path]:
    """Every module of the folders, as `runtime.scheduler.plan`; a package by its own name."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def part_of(module: str) -> str:
    """The longest name in MAY_IMPORT that contains the module."""
    return max((part for part in MAY_IMPORT if is_within(module, part)), key=len)


def is_within(module: str, part: str) -> bool:
    return module == part or module.startswith(part + ".")


def may_import(part: str, target: str) -> bool:
    """Whether a part may import another. A part may import itself; `runtime` stands only for the shared
    modules."""
    if part_of(target) == part and part != "runtime":
        return True
    return any(is_within(target, allowed) for allowed in MAY_IMPORT[part])


def imports_of_ours(module: str, path: Path) -> Iterator[str]:
    """The modules of the package that a module imports, such as `runtime.messages`."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            origin = ".".join(filter(None, base))
            for alias in node.names:
                name = f"{origin}.{alias.name}"
                yield name if name in modules() else origin


def folder_of(module: str) -> str:
    """The folder that contains the module; a package is its own folder."""
    return module if (ROOT / module.replace(".", "/")).is_dir() else module.rpartition(".")[0]


def in_circles(imports: dict[str, set[str]]) -> list[str]:
    """The names in a circle of imports, and the names that reach one."""
    left = {name: targets & imports.keys() - {name} for name, targets in imports.items()}
    while ends := {name for name, targets in left.items() if not targets & left.keys()}:
        left = {name: targets for name, targets in left.items() if name not in ends}
    return sorted(left)


def imported_names(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""


def loaded_by(statement: str, candidates: set[str]) -> set[str]:
    """The modules among these that are loaded after the statement, in a fresh interpreter."""
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    output = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    ).stdout
    return candidates & set(output.split())


def test_every_folder_with_code_is_a_listed_package() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = tomllib.load(file)["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(ROOT) for path in modules().values()}
    expected = {"arbora"} | {".".join(("arbora", *folder.parts)) for folder in folders}
    assert sorted(listed) == sorted(expected)


def test_every_package_has_an_init_file() -> None:
    assert [path for path in modules().values() if not (path.parent / "__init__.py").exists()] == []


@pytest.mark.parametrize("folder", ["tests", "bench"])
def test_tests_and_benchmarks_are_not_packages(folder: str) -> None:
    assert list((ROOT / folder).rglob("__init__.py")) == []


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_only_what_it_may(part: str) -> None:
    wrong = [
        f"{module} imports {target}"
        for module, path in modules().items()
        if part_of(module) == part
        for target in imports_of_ours(module, path)
        if not may_import(part, target)
    ]
    assert wrong == []


def test_each_room_of_the_frontend_has_a_rule() -> None:
    rooms = {".".join(module.split(".")[:2]) for module in modules() if is_within(module, "frontend")}
    assert rooms - MAY_IMPORT.keys() == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert (
        in_circles({module: set(imports_of_ours(module, path)) for module, path in modules().items()}) == []
    )


def test_no_folders_import_each_other_in_a_circle() -> None:
    imports: dict[str, set[str]] = {}
    for module, path in modules().items():
        targets = {folder_of(target) for target in imports_of_ours(module, path)}
        imports.setdefault(folder_of(module), set()).update(targets)
    assert in_circles(imports) == []


def test_messages_are_imported_from_their_package_not_from_its_modules() -> None:
    wrong = [
        f"{module} imports {target}"
        for module, path in modules().items()
        if not is_within(module, "runtime.messages")
        for target in imports_of_ours(module, path)
        if target.startswith("runtime.messages.")
    ]
    assert wrong == []


def test_the_package_names_itself_only_by_relative_imports() -> None:
    own = {"arbora", *FOLDERS}
    wrong = [
        f"{module} imports {name}"
        for module, path in modules().items()
        for name in imported_names(path)
        if name.partition(".")[0] in own
    ]
    assert wrong == []


@pytest.mark.parametrize("module", ["runtime.scheduler.process", "radix_cache", "grammars"])
def test_the_scheduler_process_loads_no_tensors_no_web_server_and_no_compiler(module: str) -> None:
    heavy = {"torch", "transformers", "starlette", "numba", "llguidance", "arbora.grammars.schema.compile"}
    assert loaded_by(f"import arbora.{module}", heavy) == set()


@pytest.mark.parametrize("module", ["runtime.scheduler.process", "grammars.host.server"])
def test_processes_without_an_event_loop_do_not_load_asyncio(module: str) -> None:
    assert loaded_by(f"import arbora.{module}", {"asyncio"}) == set()


def test_the_processes_that_run_llguidance_load_no_compiler() -> None:
    assert loaded_by("import arbora.grammars.host.server", {"numba"}) == set()


def test_the_automaton_format_loads_no_tensors_and_no_compiler() -> None:
    assert loaded_by("import arbora.runtime.automaton_format", {"torch", "numba"}) == set()


def test_the_supervisor_loads_no_tensors() -> None:
    heavy = {"torch", "transformers", "numpy", "numba", "starlette", "huggingface_hub", "tokenizers"}
    assert loaded_by("import arbora.frontend.cli.main", heavy) == set()


def test_the_package_loads_its_public_names_when_they_are_asked_for() -> None:
    assert loaded_by("import arbora", {"zmq", "msgspec", "numpy", "arbora.frontend"}) == set()


def untyped_functions(node: ast.AST) -> Iterator[str]:
    """The functions without types in a tree that are neither kernels nor in one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            if any(KERNEL_DECORATOR.match(ast.unparse(each)) for each in child.decorator_list):
                continue
            given = [*child.args.posonlyargs, *child.args.args, *child.args.kwonlyargs]
            untyped = [
                each.arg for each in given if each.annotation is None and each.arg not in ("self", "cls")
            ]
            if untyped or child.returns is None:
                yield f"{child.name}({', '.join(untyped)})"
        yield from untyped_functions(child)


def test_every_function_but_kernels_has_types() -> None:
    may_have_kernels = {
        module: path
        for module, path in modules().items()
        if is_within(module, "kernels") or is_within(module, "grammars")
    }
    found = {module: list(untyped_functions(parsed(path))) for module, path in may_have_kernels.items()}
    assert {module: names for module, names in found.items() if names} == {}


def test_every_public_name_exists() -> None:
    assert all(hasattr(arbora, name) for name in arbora.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        getattr(arbora, "Motor")  # noqa: B009


def test_the_version_is_the_same_everywhere() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["version"] == arbora.__version__
