"""Runs `arbora serve` with long timeouts of the watchdog: no test fails because the machine stalls."""

from __future__ import annotations

import os
import sys

from arbora.frontend.cli.main import build_parser, serve_config
from arbora.frontend.launch.child_process import server_commands
from arbora.frontend.launch.serve import serve
from arbora.frontend.launch.watchdog import Timeouts
from arbora.runtime.logs import write_log

LONG = Timeouts(
    unresponsive_s=120.0,
    silent_s=240.0,
    stalled_s={"model": 480.0, "scheduler": 480.0, "tokenizer": 480.0},
)

if __name__ == "__main__":
    config = serve_config(vars(build_parser().parse_args()), os.environ)
    write_log(config.log_level)
    sys.exit(serve(config, server_commands(), LONG))
