"""The loop of every chat: carries out commands, says all other texts, and writes the results on a screen."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from ...core.text.utf8 import is_utf8
from ...language.api_client import ApiError
from .conversation import CommandError
from .slash_commands import EXIT, is_command, run_command
from .talk import OnPiece, Talk, Turn


class Screen(Protocol):
    """Where a chat writes: a terminal, lines of text, or lines of JSON."""

    def reply(self) -> AbstractContextManager[OnPiece]:
        """The context of one reply, which gets its pieces."""

    def end_turn(self, text: str, turn: Turn) -> None: ...

    def answer(self, command: str, text: str) -> None: ...

    def refuse(self, line: str, error: CommandError | ApiError) -> None:
        """Writes that a command was not carried out, or that a text got no reply."""


def converse(talk: Talk, lines: Iterable[str], screen: Screen) -> int:
    """Talks until /exit or the last line. Returns 1 if a command was refused or a text got no reply."""
    exit_code = 0
    for line in lines:
        try:
            if not is_utf8(line):
                line = ascii(line)
                raise CommandError(f"this line is not UTF-8, so it was not sent: {line}")
            if is_command(line):
                if line.split()[0] == EXIT:
                    break
                screen.answer(line, run_command(talk, line))
            elif line:
                text = line.removeprefix("/")
                with screen.reply() as show:
                    turn = talk.say(text, show)
                screen.end_turn(text, turn)
        except (CommandError, ApiError) as error:
            exit_code = 1
            screen.refuse(line, error)
    return exit_code


def refusal_in_words(error: CommandError | ApiError) -> str:
    if isinstance(error, CommandError):
        return str(error)
    is_full = error.code == "context_length_exceeded"
    advice = ". A shorter one may fit, and /reset begins a new conversation" if is_full else ""
    return f"no reply, and this turn is forgotten: {str(error).rstrip('.')}{advice}."
