"""A chat on a terminal: line editing, history, completion, and replies as Markdown."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.console import Console
from rich.text import Text

from ...language.api_client import ApiError
from ..output import console as make_console
from .conversation import SETTINGS, CommandError
from .markdown_stream import MarkdownStream
from .slash_commands import COMMANDS, is_command
from .talk import OnPiece, Talk, Turn
from .turns import converse, refusal_in_words

QUOTES = '"""'
LOCAL_MODES = 3
"""The index of the local modes among a terminal's attributes."""
MIN_TIMED_S = 0.05
"""Seconds. If all tokens of a reply arrive within this time, no speed is shown."""
GREETING = (
    f"Alt-Enter begins a new line, and so does Enter between {QUOTES} and {QUOTES}. /help lists commands."
)


def terminal_chat(talk: Talk, url: str) -> int:
    """Talks until /exit or Ctrl-D."""
    console = make_console()
    console.print(Text(f"{talk.conversation.model} at {url}", "bold"))
    console.print(Text(GREETING, "dim"))
    session: PromptSession[str] = PromptSession(
        history=open_history(),
        completer=SlashCompleter(talk),
        complete_while_typing=True,
        key_bindings=_keys(),
        multiline=True,
        prompt_continuation="… ",
    )
    converse(talk, _read_texts(session), TerminalScreen(console, talk))
    return 0


def _read_texts(session: PromptSession[str]) -> Iterator[str]:
    """Yields the typed texts. A text in quotes is no command, also if it begins with a slash."""
    while True:
        try:
            text = session.prompt("> ").strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text.startswith(QUOTES):
            text = text.strip('"').strip()
            text = f"/{text}" if text.startswith("/") else text
        yield text


class TerminalScreen:
    """Shows replies as Markdown, or unchanged if they match a schema."""

    def __init__(self, console: Console, talk: Talk) -> None:
        self._console = console
        self._talk = talk

    @contextmanager
    def reply(self) -> Iterator[OnPiece]:
        is_markdown = self._talk.conversation.schema is None
        with without_echo(), MarkdownStream(self._console, is_markdown=is_markdown) as stream:
            yield lambda piece: stream.add(piece.reasoning, piece.text)

    def end_turn(self, text: str, turn: Turn) -> None:
        self._console.print(Text(turn_in_words(turn), "dim"))

    def answer(self, command: str, text: str) -> None:
        self._console.print(Text(text, "cyan"))

    def refuse(self, line: str, error: CommandError | ApiError) -> None:
        self._console.print(Text(refusal_in_words(error), "red"))


@contextmanager
def without_echo() -> Iterator[None]:
    """Hides keys that are typed meanwhile, as they would break up the reply. The next prompt gets them."""
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    without = [*before[:LOCAL_MODES], before[LOCAL_MODES] & ~termios.ECHO, *before[LOCAL_MODES + 1 :]]
    termios.tcsetattr(terminal, termios.TCSADRAIN, without)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def turn_in_words(turn: Turn) -> str:
    """One line: how the reply ended, its tokens, the cached share of its prompt, and its speed."""
    parts = [turn.ending] if turn.ending else []
    if turn.usage is not None:
        parts.append(f"{turn.usage.prompt_tokens:,} prompt tokens, {turn.cached_share:.0%} cached")
        parts.append(f"{turn.usage.completion_tokens:,} in the reply")
    if turn.first_token_s is not None:
        parts.append(f"first after {turn.first_token_s:.2f} s")
        decoding = turn.seconds - turn.first_token_s
        if turn.usage is not None and turn.usage.completion_tokens > 1 and decoding > MIN_TIMED_S:
            parts.append(f"then {(turn.usage.completion_tokens - 1) / decoding:,.0f} tokens/s")
    return " · ".join(parts)


class SlashCompleter(Completer):
    """Completes the names of commands, settings and models, and the paths of files."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not is_command(text) or "\n" in text:
            return
        name, space, rest = text.partition(" ")
        if not space:
            yield from _completions(name, {each: command.help for each, command in COMMANDS.items()})
        elif name == "/set":
            yield from _completions(rest, dict.fromkeys(SETTINGS, ""))
        elif name == "/model":
            yield from _completions(rest, {each.name: "" for each in self._talk.models})
        elif name in ("/schema", "/save", "/load"):
            yield from self._paths.get_completions(Document(rest, len(rest)), event)


def _completions(begun: str, names: dict[str, str]) -> Iterable[Completion]:
    for name, meaning in names.items():
        if name.startswith(begun):
            yield Completion(name, start_position=-len(begun), display_meta=meaning)


def _keys() -> KeyBindings:
    """Enter sends the text, unless it begins with three quotes and does not end with them."""
    keys = KeyBindings()

    @keys.add("enter")
    def send_or_break(event: KeyPressEvent) -> None:
        text = event.current_buffer.text.strip()
        is_open = text.startswith(QUOTES) and (len(text) < 2 * len(QUOTES) or not text.endswith(QUOTES))
        if is_open:
            event.current_buffer.insert_text("\n")
        else:
            event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def break_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def history_path() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "arbora" / "chat_history"


def open_history() -> History:
    """The history on disk, which only this user may read; in memory if the file can't be written."""
    path = history_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        with path.open("a"):
            pass
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)
