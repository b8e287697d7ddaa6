"""The command line. `serve`, `key` and `completion` are here. Each other command has its own module."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from logging import getLogger
from typing import Any, NamedTuple, NoReturn, Protocol, cast, get_args

from ...runtime.config import OPTIONS, LogFormat, ServeConfig
from ...runtime.errors import ConfigError
from ...runtime.logs import write_log
from ..core.text.close_names import did_you_mean
from ..core.text.utf8 import is_utf8
from ..http.key_file import NAME_FORM, as_json, is_name, line_of, new_key
from ..launch.child_process import server_commands
from ..launch.listening import check_address
from ..launch.options import Setting, build_config, from_environment, unknown_variables
from ..launch.placement import place_replicas
from ..launch.program_name import name_program, program_name
from ..launch.serve import serve
from ..model_files.known_models import find_known
from ..model_files.packaged_models import packaged_model
from .completion import COMPLETION, COMPLETION_EXAMPLE, SHELLS, completion_script
from .output import drop_output
from .serve_options import DESCRIPTION, EPILOG, USAGE, add_serve_options
from .unknown_options import ELSEWHERE, unknown_arguments

INTERRUPTED = 130


class CommandModule(Protocol):
    """A module of this room that defines a command."""

    DESCRIPTION: str
    EXAMPLE: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, parsed: argparse.Namespace) -> int:
        """Runs the command. Returns the exit code. Raises ConfigError for options that can't be used."""


class Command(NamedTuple):
    help: str
    module: str
    """The name of the command's module, which is imported only when the command is used."""

    def load(self) -> CommandModule:
        return cast(CommandModule, import_module(self.module, __package__))


COMMANDS = {
    "chat": Command("talk to a running server", ".chat.command"),
    "run": Command("run a program of the language", ".run"),
    "bench": Command("measure a running server", ".bench.command"),
    "pull": Command("download a model", ".pull"),
    "list": Command("list the downloaded models", ".list"),
    "rm": Command("delete a downloaded model", ".rm"),
    "models": Command("list well-known models and which fit this machine", ".models"),
    "ps": Command("list the running servers", ".ps"),
    "plan": Command("estimate a model's memory, speed and cost", ".plan.command"),
    "doctor": Command("check this machine", ".doctor.command"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 if the command failed or the reader of its output has ended, 2 for a
    setting that can't be used."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given:
        build_parser().print_help(sys.stderr)
        return 2
    _check_command(given[0])
    try:
        parsed = _parse(given)
        if parsed.command in COMMANDS:
            return COMMANDS[parsed.command].load().run(parsed)
        if parsed.command == "key":
            print_new_key(parsed.name, parsed.json)
            return 0
        if parsed.command == "completion":
            print(completion_script(build_parser(tuple(COMMANDS)), parsed.shell))
            return 0
        write_log("warning")  # shows warnings about the options themselves
        config = serve_config(vars(parsed), os.environ, _check_before_model)
        getLogger().setLevel(config.log_level.upper())
        return serve(config, server_commands(config.api_workers, place_replicas(config)))
    except ConfigError as error:
        print(f"arbora: error: {name_program(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        drop_output()
        return 1


def _parse(given: Sequence[str]) -> argparse.Namespace:
    """Exits with an error for unknown arguments. Raises ConfigError for a value that can't be used."""
    parsed, unknown = build_parser(given[:1]).parse_known_args(given)
    if parsed.command == "run":  # argparse takes no positional arguments after options
        parsed.arguments += [argument for argument in unknown if not argument.startswith("-")]
        unknown = [argument for argument in unknown if argument.startswith("-") and argument != "--"]
    if unknown:
        elsewhere = ELSEWHERE if parsed.command == "serve" else {}
        parsed.fail(unknown_arguments(unknown, parsed.flags, elsewhere))
    if parsed.command != "run":  # a program may take any text
        _check_characters(given)
    return parsed


def _check_before_model(config: ServeConfig) -> None:
    """Warns of variables without effect. Raises ConfigError if the server can't listen, or if a chat template
    can't be read."""
    unknown_names = unknown_variables(os.environ)
    if unknown_names and config.log_level != "error":
        getLogger(__name__).warning("%s", unknown_names)
    check_address(config)
    if config.chat_template is not None:
        from ..core.text.chat_template import parse_template  # imports jinja2 and tokenizers

        parse_template(config.chat_template, "--chat-template: the template")


def _check_characters(arguments: Sequence[str]) -> None:
    """Raises ConfigError if the bytes of an argument are not UTF-8."""
    for argument in arguments:
        if not is_utf8(argument):
            raise ConfigError(f"the argument {argument!a} is not UTF-8.")


def _check_command(name: str) -> None:
    """Exits with an error if the first argument is neither a command nor an option."""
    known = ("serve", *COMMANDS, "key", "completion")
    if name in known or name.startswith("-"):
        return
    serves = f" Did you mean `{program_name()} serve {name}`?"
    meant = serves if _looks_like_model(name) else did_you_mean(name, known)
    build_parser().error(f"there is no command {name}.{meant} The commands are {', '.join(known)}.")


def serve_config(
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    check: Callable[[ServeConfig], object] = lambda config: None,
) -> ServeConfig:
    """Flags override variables, and variables override defaults. `check` sees the configuration before a
    model is downloaded. Raises ConfigError."""
    settings = from_environment(environment)
    model = flags["model"]
    for option in OPTIONS:
        given = flags[option.name]
        if option.alone and model is None and _is_misplaced_model(given):
            model, given = given, option.alone
        if given is not None:
            settings[option.name] = Setting(option.flag, given)
    model = model or environment.get("ARBORA_MODEL") or None
    _check_model_is_no_name(model, flags["served_model_name"])
    return build_config(None if model is None else str(model), settings, check)


def _check_model_is_no_name(model: object, names: object) -> None:
    """Raises ConfigError for `--served-model-name NAME MODEL`, where MODEL would be a second name."""
    if model is not None or not isinstance(names, list):
        return
    *others, last = names
    if last.startswith((".", "/", "~")) or (others and _looks_like_model(last)):
        named = f" --served-model-name {' '.join(others)}" if others else ""
        raise ConfigError(
            f"--served-model-name {' '.join(names)}: {last} looks like a model, but is among the names. "
            f"Write `{program_name()} serve {last}{named}`."
        )


def _is_misplaced_model(value: object) -> bool:
    """Whether the value of an option that needs no value is really the MODEL after the option."""
    return isinstance(value, str) and value not in get_args(LogFormat) and _looks_like_model(value)


def _looks_like_model(text: str) -> bool:
    is_name = find_known(text) is not None or packaged_model(text) is not None
    return "/" in text or is_name or os.path.exists(text)  # `Path` raises an error for long names


def print_new_key(name: str, json: bool) -> None:
    """Prints a new API key and its line for a key file. Raises ConfigError for an invalid name."""
    if not is_name(name):
        raise ConfigError(f"arbora key {name}: a name has {NAME_FORM}.")
    key = new_key()
    if json:
        print(as_json(name, key))
        return
    print(f"the key, for the client alone: {key}")
    print(f"its line for the file of --api-key @FILE, where limits may be added: {line_of(name, key)}")


class _Parser(argparse.ArgumentParser):
    """A parser that accepts no abbreviated options, and reports an error in one line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        advice = f"`{self.prog} --help` lists all options."
        sentence = message if message.endswith((".", "?")) else f"{message}."
        self.exit(2, f"arbora: error: {sentence} {advice}\n")


def build_parser(chosen: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of all commands. Of those in COMMANDS only the `chosen` ones have their arguments."""
    parser = _Parser(prog="arbora", description="Serve open-weight language models.")
    parser.add_argument("--version", action="version", version=f"arbora {version('arbora')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="start a server", usage=USAGE)
    _describe(serve, DESCRIPTION, EPILOG)
    add_serve_options(serve)
    for name, command in COMMANDS.items():
        if name in chosen:
            _add_command(commands.add_parser(name, help=command.help), command.load())
        else:
            commands.add_parser(name, help=command.help)
    key = commands.add_parser("key", help="make an API key", description=KEY)
    key.set_defaults(fail=key.error, flags=("--json",))
    key.add_argument("name", metavar="NAME", help="the name of the key in logs and metrics")
    key.add_argument("--json", action="store_true", help="print JSON instead of text")
    completion = commands.add_parser("completion", help="print a shell's completion script")
    _describe(completion, COMPLETION, f"example:\n  {COMPLETION_EXAMPLE}")
    completion.set_defaults(fail=completion.error, flags=())
    completion.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    return parser


def _describe(parser: argparse.ArgumentParser, description: str, epilog: str) -> None:
    """Gives a command texts whose lines stay as they are."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = description, epilog


def _add_command(parser: argparse.ArgumentParser, module: CommandModule) -> None:
    _describe(parser, module.DESCRIPTION, f"example:\n  {module.EXAMPLE}")
    module.add_arguments(parser)
    flags = [flag for flag in parser._option_string_actions if flag.startswith("--")]
    parser.set_defaults(fail=parser.error, flags=flags)


KEY = "Print a new API key, and its line for the file of --api-key @FILE, which has only the key's hash."
