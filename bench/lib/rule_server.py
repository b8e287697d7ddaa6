"""Runs `arbora serve` with round robin in place of the router's rule, so that all else is the same.

    python rule_server.py serve MODEL --replicas 3

The server starts its HTTP process by the same file, which changes the router before it serves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from itertools import count

from arbora.frontend.core.replica.router import Router
from arbora.runtime.messages import Generate

HTTP = "http"
_turns = count()


def choose_in_turn(router: Router, requests: Sequence[Generate], replicas: Collection[int]) -> int:
    """Stands for `Router.choose`."""
    numbers = sorted(replicas)
    return numbers[next(_turns) % len(numbers)]


def serve() -> int:
    from arbora.frontend.cli.main import build_parser, serve_config
    from arbora.frontend.launch.child_process import Command, server_commands
    from arbora.frontend.launch.placement import place_replicas
    from arbora.frontend.launch.serve import serve
    from arbora.runtime.logs import write_log

    config = serve_config(vars(build_parser().parse_args()), os.environ)
    write_log(config.log_level)
    http = Command("tokenizer", (sys.executable, __file__, HTTP))
    commands = server_commands(replicas=place_replicas(config))._replace(tokenizers=(http,))
    return serve(config, commands)


if __name__ == "__main__":
    if sys.argv[1] == HTTP:
        from arbora.frontend.app import process

        del sys.argv[1]
        Router.choose = choose_in_turn  # type: ignore[assignment,method-assign]
        process.main()
    else:
        sys.exit(serve())
