"""`arbora serve` with fake children: python fake_server.py PORT SCHEDULER MODEL TOKENIZER (behaviours)."""

from __future__ import annotations

import sys
from pathlib import Path

from arbora.frontend.launch.child_process import Command, Commands
from arbora.frontend.launch.serve import serve
from arbora.runtime.config import ServeConfig
from arbora.runtime.logs import write_log

FAKE_CHILD = str(Path(__file__).with_name("fake_child.py"))


def fake_commands(scheduler: str = "work", model: str = "work", tokenizer: str = "work") -> Commands:
    """Without a tokenizer process if its behaviour is "absent"."""
    tokenizers = () if tokenizer == "absent" else (fake_command("tokenizer", tokenizer),)
    return Commands(fake_command("scheduler", scheduler), fake_command("model", model), tokenizers)


def fake_command(role: str, behaviour: str) -> Command:
    return Command(role, (sys.executable, FAKE_CHILD, role, behaviour))


if __name__ == "__main__":
    write_log("info")
    config = ServeConfig(model=Path("/nowhere"), served_model_name="fake", port=int(sys.argv[1]))
    sys.exit(serve(config, fake_commands(*sys.argv[2:])))
