"""The help of `arbora serve`, and the scripts of `arbora completion`."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import textwrap
from collections import Counter

import pytest
from arbora.frontend.cli.main import build_parser, main
from arbora.frontend.cli.serve_options import GROUPS
from arbora.runtime.config import OPTIONS
from arbora.runtime.option_values import Option

COLUMNS = 100
ASKS = """
{script}
COMP_WORDS=(arbora {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
$(complete -p arbora | sed "s/.*-F \\([^ ]*\\) .*/\\1/") arbora "${{COMP_WORDS[-1]}}" "${{COMP_WORDS[-2]}}"
echo "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The help of `arbora serve`."""
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    with pytest.raises(SystemExit, match="0"):
        main(["serve", "--help"])
    return capsys.readouterr().out


def test_every_option_is_in_one_group() -> None:
    grouped = Counter(name for names in GROUPS.values() for name in names)
    assert grouped == Counter(option.name for option in OPTIONS)


def test_the_help_begins_with_examples_and_has_the_groups_in_order(told: str) -> None:
    start, *groups = (told.index(f"\n{title}:\n") for title in ("examples", *GROUPS))
    assert start < 300 and groups == sorted(groups)


def test_the_examples_are_commands(told: str) -> None:
    commands = re.findall(r"^  arbora (serve .+)$", told, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        build_parser().parse_args(command.split())


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_option_is_told_in_three_lines(option: Option) -> None:
    assert len(textwrap.wrap(option.full_help, COLUMNS - 26)) <= 3  # argparse's indent and margin


def complete(script: str, words: str) -> list[str]:
    """The completions of bash."""
    command = ["bash", "--norc", "-c", ASKS.format(script=script, words=words)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]}
    )
    return done.stdout.split()


def test_bash_completes_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert complete(script, "ser") == ["serve"]
    assert set(complete(script, "serve --kv-")) == {"--kv-memory", "--kv-dtype", "--kv-events"}
    assert complete(script, "bench --str") == ["--streams"]
    assert complete(script, "completion f") == ["fish"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_with_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    commands = next(
        action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    assert [name for name in commands.choices if name not in script] == []
    assert "kv-memory" in script
