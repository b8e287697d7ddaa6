"""Chats in lines, where input or output is no terminal: plain text for people, JSON for programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from io import TextIOWrapper

import msgspec

from ...language.api_client import ApiError, Piece
from ..output import print_json, without_controls
from .conversation import CommandError, CommandInterruptedError
from .talk import OnPiece, Talk, Turn
from .turns import converse, refusal_in_words

DIM, NORMAL = "\x1b[2m", "\x1b[22m"  # control sequences of ECMA-48


def text_chat(talk: Talk, url: str) -> int:
    """Chats in plain text. Returns the exit code. Ctrl-C ends the running reply, or else the chat."""
    print(f"{talk.conversation.model} at {url}. /help lists the commands, /exit ends.")
    try:
        return converse(talk, read_lines("> " if sys.stdin.isatty() else ""), TextScreen())
    finally:
        if sys.stdin.isatty():
            print()  # ends the line of the prompt


def json_chat(talk: Talk) -> int:
    """Chats in JSON. Returns the exit code. After Ctrl-C writes a last line and raises KeyboardInterrupt."""
    return converse(talk, read_lines(), JsonScreen(talk))


def read_lines(prompt: str = "") -> Iterator[str]:
    """Yields the lines of standard input, read as UTF-8 whatever the locale. Other bytes raise no error, so
    the caller must check each line by `is_utf8`."""
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    with suppress(ImportError):
        import readline  # noqa: F401  (gives `input` line editing)
    while True:
        try:
            line = input(prompt).strip()
        except EOFError:
            return
        yield line


class TextScreen:
    """Prints a reply as it arrives: the reasoning first, dimmed on a terminal, then an empty line and the
    text. A terminal gets no control characters."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._dims = self._is_terminal and "NO_COLOR" not in os.environ

    @contextmanager
    def reply(self) -> Iterator[OnPiece]:
        is_reasoning = False
        has_line = False

        def show(piece: Piece) -> None:
            nonlocal is_reasoning, has_line
            has_line = True
            if piece.reasoning:
                is_reasoning = True
                reasoning = self._printable(piece.reasoning)
                self._print(f"{DIM}{reasoning}{NORMAL}" if self._dims else reasoning)
            if piece.text:
                self._print("\n\n" * is_reasoning + self._printable(piece.text))
                is_reasoning = False

        try:
            yield show
            has_line = True
        finally:
            if has_line:
                self._print("\n")

    def end_turn(self, text: str, turn: Turn) -> None:
        if turn.ending:
            print(f"({turn.ending})")

    def answer(self, command: str, text: str) -> None:
        print(self._printable(text))

    def refuse(self, line: str, error: CommandError | ApiError) -> None:
        print(f"({refusal_in_words(error)})", file=sys.stderr)

    def _printable(self, text: str) -> str:
        return without_controls(text) if self._is_terminal else text

    def _print(self, text: str) -> None:
        print(text, end="", flush=True)


class JsonScreen:
    """Prints a line of JSON for each turn and each command."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._turns = 0

    def reply(self) -> AbstractContextManager[OnPiece]:
        self._turns += 1
        return nullcontext(lambda piece: None)

    def end_turn(self, text: str, turn: Turn) -> None:
        begin = {"turn": self._turns, "model": self._talk.conversation.model, "user": text}
        print_json({**begin, **msgspec.to_builtins(turn)})
        if turn.finish_reason == "interrupted":
            raise KeyboardInterrupt  # raised again, because `Talk.say` has caught it

    def answer(self, command: str, text: str) -> None:
        print_json({"command": command, "answer": text})

    def refuse(self, line: str, error: CommandError | ApiError) -> None:
        if isinstance(error, ApiError):
            failure = {"message": str(error), "code": error.code}
            print_json({"turn": self._turns, "user": line.removeprefix("/"), "error": failure})
            return
        print_json({"command": line, "error": {"message": str(error)}})
        if isinstance(error, CommandInterruptedError):
            raise KeyboardInterrupt from None
