"""A chat for programs: a line of text in, a line of JSON out for each turn and each command."""

from __future__ import annotations

import sys

from ...core.text.utf8 import is_utf8
from ...language.api_client import ApiError
from ..output import print_json
from .characters import NOT_UTF8, read_utf8
from .conversation import CommandError, CommandInterruptedError
from .slash_commands import EXIT, is_command, run_command
from .talk import Talk


def json_chat(talk: Talk) -> int:
    """Answers each line of standard input. Returns 1 if a turn or a command failed.

    Ctrl-C raises KeyboardInterrupt, after a line with what has arrived of the reply that it ended, or with
    the command that it interrupted.
    """
    exit_code, number = 0, 0
    read_utf8()
    for line in sys.stdin:
        text = line.strip()
        if not text:
            continue
        if not is_utf8(text):
            exit_code = 1
            print_json({"error": {"message": f"{NOT_UTF8}: {text!a}"}})
            continue
        if is_command(text):
            if text.split()[0] == EXIT:
                break
            try:
                print_json({"command": text, "answer": run_command(talk, text)})
            except CommandError as error:
                exit_code = 1
                print_json({"command": text, "error": {"message": str(error)}})
                if isinstance(error, CommandInterruptedError):
                    raise KeyboardInterrupt from None
            continue
        number += 1
        said = text.removeprefix("/")
        try:
            turn = talk.say(said, lambda piece: None)
        except ApiError as error:
            exit_code = 1
            print_json({"turn": number, "user": said, "error": {"message": str(error), "code": error.code}})
            continue
        print_json(
            {
                "turn": number,
                "model": talk.conversation.model,
                "user": said,
                "reply": turn.reply,
                "reasoning": turn.reasoning,
                "finish_reason": turn.finish_reason,
                "usage": turn.usage,
                "first_token_s": turn.first_token_s,
                "seconds": round(turn.seconds, 4),
                "cache_explanation": turn.explanation,
            }
        )
        if turn.finish_reason == "interrupted":
            raise KeyboardInterrupt  # `Talk.say` has taken it
    return exit_code
