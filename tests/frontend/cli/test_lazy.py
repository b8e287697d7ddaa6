"""What each command loads before it runs, and what its help shows."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from arbora.frontend.cli.main import COMMANDS

LOADED = """
import json, sys
from arbora.frontend.cli.main import build_parser
build_parser(sys.argv[1:2]).parse_known_args(sys.argv[1:])
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
HEAVY = {
    "rich",
    "prompt_toolkit",
    "pygments",
    "torch",
    "huggingface_hub",
    "tqdm",
    "httpx",
    "numba",
    "packaging",
}


@pytest.mark.parametrize(
    "command", ["serve", "bench", "chat", "doctor", "plan", "pull", "list", "rm", "models", "ps"]
)
def test_reading_the_options_loads_nothing_heavy(command: str) -> None:
    arguments = [command, "a/b"] if command in ("pull", "rm") else [command]
    done = subprocess.run([sys.executable, "-P", "-c", LOADED, *arguments], capture_output=True, check=True)
    assert HEAVY & set(json.loads(done.stdout)) == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_json_and_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    from arbora.frontend.cli.main import build_parser

    with pytest.raises(SystemExit, match="0"):
        build_parser([name]).parse_args([name, "--help"])
    said = capsys.readouterr().out
    assert "--json" in said and f"example:\n  arbora {name}" in said
    example = said.partition("example:\n  arbora ")[2].split()
    assert all(word in said.partition("example:")[0] for word in example if word.startswith("--"))
