"""`arbora completion`: scripts with which shells complete the commands and options of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

SHELLS = ("bash", "zsh", "fish")
COMPLETION = "Print a script with which a shell completes commands, options and paths."
COMPLETION_EXAMPLE = "source <(arbora completion bash)"
FILES = ("MODEL", "FILE", "TEMPLATE")
"""placeholders of arguments that may be files; a directory is completed after --disk-cache and the like"""


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for a parser that has the arguments of all commands."""
    import shtab

    for action in _walk(parser):
        words = str(action.metavar).split(",")
        if any(word in FILES for word in words):
            setattr(action, "complete", shtab.FILE)  # noqa: B010 (an attribute that shtab reads)
        elif "DIRECTORY" in words:
            setattr(action, "complete", shtab.DIRECTORY)  # noqa: B010
        action.help = None if action.help is None else action.help.replace("`", "'")
    return str(shtab.complete(parser, shell))


def _walk(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _walk(command)
