"""`arbora run`: runs a program of the language from a file."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...runtime.errors import ConfigError
from ...runtime.option_values import expand_home
from ..core.text.close_names import did_you_mean
from ..launch.errors import CannotStartError, ServerError
from ..launch.program_name import program_name
from ..model_files.model_source import BUILTIN_NAME
from .output import JSON_HELP, print_json
from .server_option import add_server, server_url

if TYPE_CHECKING:
    from ..language.program import Program
    from ..language.state import FinishedState

DESCRIPTION = (
    "Run a program of the language: a function with @arbora.program. A file with several runs the one named\n"
    "main, or the one given with --program. It runs on the server at --url, or on a model of its own."
)
EXAMPLE = "arbora run judge.py --trace trace.html essay=@essay.txt"
MAIN = "main"
MODULE = "arbora_program"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="a Python file with the program")
    parser.add_argument(
        "arguments",
        metavar="NAME=VALUE",
        nargs="*",
        help="an argument of the program: JSON or text, or @FILE for the text of a file",
    )
    add_server(parser)
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help=f"run on this model in its own processes, without a server; {BUILTIN_NAME} is the built-in one",
    )
    parser.add_argument(
        "--program", metavar="NAME", help=f"the function to run (default: {MAIN}, or the only one)"
    )
    parser.add_argument("--trace", metavar="FILE", type=Path, help="write a page that shows each call")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def run(parsed: argparse.Namespace) -> int:
    program = find_program(load_file(parsed.file), parsed.program, parsed.file)
    arguments = read_arguments(parsed.arguments, program)
    from ..language.errors import NoServerError, ProgramError

    try:
        with _backend(parsed) as backend:
            state = program.run(backend=backend, **arguments)
            values = {name: state[name] for name in state.names}
    except (ProgramError, ServerError) as error:
        if parsed.json:
            print_json({"error": {"message": str(error)}})
        else:
            print(f"arbora: error: {error}", file=sys.stderr)
        return 2 if isinstance(error.__cause__ or error, NoServerError | CannotStartError) else 1
    if parsed.trace is not None:
        _write(parsed.trace, state.trace.html())
    _print(state, values, as_json=parsed.json)
    return 0


def load_file(path: Path) -> Mapping[str, object]:
    """The names that a Python file defines. Its directory is on sys.path, as for `python FILE`."""
    if not path.is_file():
        where = "" if path.is_absolute() else f" ({path.absolute()})"
        raise ConfigError(
            f"FILE {path}: there is no such file{where}. Give the path of a Python file. To chat with a "
            f"model, use `{program_name()} serve MODEL`, then `{program_name()} chat`."
        )
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"FILE {path}: expected a Python file, whose name ends with .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module  # dataclasses look up their module
    sys.path.insert(0, str(path.absolute().parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ConfigError(f"FILE {error.filename}: line {error.lineno}: {error.msg}.") from None
    return vars(module)


def find_program(names: Mapping[str, object], wanted: str | None, path: Path) -> Program:
    """The `wanted` program, or else `main`, or else the file's only one. Otherwise raises ConfigError."""
    from ..language.program import Program

    programs = {name: each for name, each in names.items() if isinstance(each, Program)}
    own = {name: each for name, each in programs.items() if getattr(each, "__module__", "") == MODULE}
    if wanted is not None:
        if wanted not in programs:
            raise ConfigError(
                f"--program {wanted}: {path} has no such program.{did_you_mean(wanted, programs)} "
                f"It has {', '.join(programs) or 'none'}."
            )
        return programs[wanted]
    if MAIN in own:
        return own[MAIN]
    if len(own) == 1:
        return next(iter(own.values()))
    if not own:
        raise ConfigError(f"FILE {path}: it has no program. Write @arbora.program above a function.")
    raise ConfigError(f"FILE {path}: it has several programs. Choose one with --program: {', '.join(own)}.")


def read_arguments(given: Sequence[str], program: Program) -> dict[str, Any]:
    """The arguments by name. Raises ConfigError if they do not fit the function's parameters."""
    named = {each.name: each for each in program.parameters if each.kind != each.VAR_KEYWORD}
    takes_any = len(named) < len(program.parameters)
    values: dict[str, Any] = {}
    for argument in given:
        name, equals, text = argument.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"argument {argument}: expected NAME=VALUE.")
        if name not in named and not takes_any:
            raise ConfigError(
                f"argument {argument}: the program has no parameter {name}.{did_you_mean(name, named)} "
                f"It has {', '.join(named) or 'none'}."
            )
        values[name] = _value(argument, text, named.get(name))
    missing = [
        each.name
        for each in named.values()
        if each.default is each.empty and each.kind != each.VAR_POSITIONAL and each.name not in values
    ]
    if missing:
        example = " ".join(f"{name}=VALUE" for name in missing)
        raise ConfigError(f"the program needs the argument {' and '.join(missing)}: add {example}.")
    return values


def _value(argument: str, text: str, parameter: inspect.Parameter | None) -> Any:
    if text.startswith("@"):
        try:
            return expand_home(text[1:]).read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(f"argument {argument}: the file can't be read ({reason}).") from None
    annotation = None if parameter is None else parameter.annotation
    if annotation in (str, "str"):
        return text
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = text
    for kind in (int, float, bool):
        if annotation in (kind, kind.__name__) and not _is(value, kind):
            raise ConfigError(
                f"argument {argument}: the program's parameter is annotated as {kind.__name__}."
            )
    return value


def _is(value: object, kind: type) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


@contextlib.contextmanager
def _backend(parsed: argparse.Namespace) -> Iterator[object]:
    if parsed.model is None:
        from ..language.http_backend import connect

        yield connect(server_url(parsed.url), api_key=parsed.api_key)
        return
    from ..engine.engine import Engine

    with Engine(parsed.model) as engine:
        yield engine


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigError(f"--trace {path}: the file can't be written ({error.strerror}).") from None


def _print(state: FinishedState, values: Mapping[str, Any], *, as_json: bool) -> None:
    trace = state.trace
    if as_json:
        tokens = {"prompt_tokens": trace.prompt_tokens, "cached_tokens": trace.cached_tokens}
        calls = {"calls": trace.calls, **tokens}
        print_json({"values": values, "result": state.result, "trace": calls})
        return
    for name, value in values.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
        print(f"{name}: {text}")
    if state.result is not None:
        print(f"result: {state.result}")
    print(trace.summary(), file=sys.stderr)
