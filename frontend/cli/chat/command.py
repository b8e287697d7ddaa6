"""`arbora chat`: its options, and the kind of chat that fits its input and output."""

from __future__ import annotations

import argparse

from ..output import is_terminal
from ..server_option import add_server

DESCRIPTION = "Talk to a running server, turn by turn. /help lists the commands, /exit ends."
EXAMPLE = "arbora chat --system 'Be brief.'"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server(parser)
    parser.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    parser.add_argument(
        "--json",
        action="store_true",
        help="read a text from each line, and print each turn as a line of JSON",
    )


def run(parsed: argparse.Namespace) -> int:
    from .lines import json_chat, text_chat
    from .server import Server
    from .talk import Talk

    server = Server(parsed.url, parsed.api_key)
    talk = Talk(server, server.models(), parsed.system)
    if talk.explains:
        server.check_template(talk.conversation.model)
    if parsed.json:
        return json_chat(talk)
    if not is_terminal():
        return text_chat(talk, parsed.url)
    from .terminal import terminal_chat  # imports prompt_toolkit and rich, which load slowly

    return terminal_chat(talk, parsed.url)
