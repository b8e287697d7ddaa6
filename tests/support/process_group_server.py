"""Runs `arbora serve` with model processes whose ranks are in a process group. Give it --debug eager, because
the programs of CPU steps can't contain the group's exchanges."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from arbora.frontend.cli.main import build_parser, serve_config
from arbora.frontend.launch.child_process import server_commands
from arbora.frontend.launch.placement import place_replicas
from arbora.frontend.launch.serve import serve
from arbora.runtime.logs import write_log

PROGRAM = str(Path(__file__).with_name("process_group_model.py"))

if __name__ == "__main__":
    config = serve_config(vars(build_parser().parse_args()), os.environ)
    write_log(config.log_level)
    commands = server_commands(replicas=place_replicas(config))
    model = commands.model._replace(argv=(sys.executable, PROGRAM))
    sys.exit(serve(config, commands._replace(model=model)))
