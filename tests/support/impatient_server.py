"""`arbora serve` whose watchdog has short timeouts, with children that loop for ever after SIGUSR1."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from arbora.frontend.cli.main import build_parser, serve_config
from arbora.frontend.launch.child_process import Command, server_commands
from arbora.frontend.launch.placement import place_replicas
from arbora.frontend.launch.serve import serve
from arbora.frontend.launch.watchdog import Timeouts
from arbora.runtime.logs import write_log

SHORT = Timeouts(
    unresponsive_s=2.0, silent_s=4.0, stalled_s={"model": 6.0, "scheduler": 6.0, "tokenizer": 4.0}
)
PROGRAM = str(Path(__file__).with_name("loops_on_demand.py"))


def looping(command: Command) -> Command:
    return command._replace(argv=(sys.executable, PROGRAM, f"loops_on_demand.{command.role}"))


if __name__ == "__main__":
    config = serve_config(vars(build_parser().parse_args()), os.environ)
    write_log(config.log_level)
    commands = server_commands(replicas=place_replicas(config))
    commands = commands._replace(
        scheduler=looping(commands.scheduler),
        model=looping(commands.model),
        tokenizers=tuple(map(looping, commands.tokenizers)),
    )
    sys.exit(serve(config, commands, SHORT))
