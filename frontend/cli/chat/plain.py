"""A chat in lines of plain text, where input or output is no terminal."""

from __future__ import annotations

import contextlib
import os
import sys

from ...core.text.utf8 import is_utf8
from ...language.api_client import ApiError, Piece
from .characters import NOT_UTF8, read_utf8, without_controls
from .server import Server
from .slash_commands import COMMANDS

HELP = "/reset begins anew, /exit ends"
FULL = "(this turn is forgotten: a shorter one may fit, and /reset starts a new conversation)"
CUT = "\n(the reply has reached its limit)"
DIM, PLAIN = "\x1b[2m", "\x1b[22m"  # ECMA-48
Turn = dict[str, str]


def plain_chat(server: Server, url: str, system: str | None) -> int:
    """Talks until /exit or the end of the input. Returns 1 if a turn got no reply or a command was refused.
    Raises ConfigError if there is no server."""
    model = server.models()[0].name
    read_utf8()
    print(f"{model} at {url}. {HELP}.")
    start = [{"role": "system", "content": system}] if system else []
    turns = list(start)
    exit_code = 0
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while (text := _read_line()) != "/exit":
            if text == "/reset":
                turns = list(start)
            elif text.startswith("/") and not text.startswith("//"):
                exit_code = 1
                print(f"{_refusal(text.split()[0])} {HELP}, //text says what begins with a slash.")
            elif not is_utf8(text):
                exit_code = 1
                print(f"({NOT_UTF8})", file=sys.stderr)
            elif text and not _take_turn(server, model, turns, text.removeprefix("/")):
                exit_code = 1
    print()
    return exit_code


def _refusal(command: str) -> str:
    """Why a command is not carried out."""
    return f"{command} needs a terminal, or --json." if command in COMMANDS else f"There is no {command}."


def _take_turn(server: Server, model: str, turns: list[Turn], text: str) -> bool:
    """Adds the user's message and the reply to `turns`, or neither without a whole reply. Returns False if
    the server gave none."""
    question: Turn = {"role": "user", "content": text}
    shown = _Shown()
    try:
        for piece in server.reply(model, [*turns, question]):
            shown.add(piece)
        if not shown.has_ended:
            raise ApiError("the stream ended without a finish reason")
        turns += [question, {"role": "assistant", "content": shown.text}]
        print()
    except KeyboardInterrupt:
        print("\n(interrupted: this turn is forgotten)")
    except ApiError as error:
        print(f"\n(no reply: {error})", file=sys.stderr)
        if error.code == "context_length_exceeded":
            print(FULL, file=sys.stderr)
        return False
    return True


class _Shown:
    """Prints a reply: the reasoning first, dimmed on a terminal, then an empty line and the text.

    A terminal gets no control characters of the reply; `text` has them all.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._dims = self._is_terminal and "NO_COLOR" not in os.environ
        self._is_reasoning = False
        self.text = ""
        self.has_ended = False

    def add(self, piece: Piece) -> None:
        if piece.reasoning:
            self._is_reasoning = True
            reasoning = self._printable(piece.reasoning)
            self._print(f"{DIM}{reasoning}{PLAIN}" if self._dims else reasoning)
        if piece.text:
            if self._is_reasoning:
                self._print("\n\n")
            self._is_reasoning = False
            self._print(self._printable(piece.text))
            self.text += piece.text
        self.has_ended |= piece.finish_reason is not None
        if piece.finish_reason == "length":
            self._print(CUT)

    def _printable(self, text: str) -> str:
        return without_controls(text) if self._is_terminal else text

    def _print(self, text: str) -> None:
        print(text, end="", flush=True)


def _read_line() -> str:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (gives `input` line editing)
    return input("> " if sys.stdin.isatty() else "").strip()
