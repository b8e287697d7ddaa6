"""Codex CLI, Claude Code and Continue's command line, each with the settings of its page in docs/howto.

The server has a copy of the built-in model with a longer context: the text of their prompts does not fit
otherwise, and what the model makes of them is nonsense. Tested is that a turn arrives and its reply is shown.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from people import NAME
from recording import Recorded, recorded_requests

HERE = Path(__file__).parent
PACKAGES = HERE / "coding_agents" / "node_modules"
PAGES = HERE.parents[1] / "docs" / "howto"
TIMEOUT_S = 300


@pytest.fixture
def recorded(roomy_url: str) -> Iterator[Recorded]:
    with recorded_requests(roomy_url) as recorded:
        yield recorded


def settings_of(page: str, kind: str, recorded: Recorded, *changes: tuple[str, str]) -> str:
    """The first block of a kind on a page, for the server of the tests."""
    text = re.search(rf"```{kind}\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)[1]
    for old, new in (("http://127.0.0.1:8000", recorded.url), *changes):
        assert old in text, old
        text = text.replace(old, new)
    return text


def run(folder: Path, *command: str | Path, **environment: str) -> str:
    """What a program prints, which has `folder` as its home and as its working directory."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def has_question(recorded: Recorded, field: str) -> bool:
    """Whether a request has the question in its messages."""
    return any(NAME in str(body.get(field)) for body in recorded.bodies)


def test_codex_runs_a_turn(recorded: Recorded, tmp_path: Path) -> None:
    changes = ('model = "mine"', 'model = "arbora-builtin"'), ('env_key = "ARBORA_API_KEY"\n', "")
    (tmp_path / ".codex").mkdir()
    config = settings_of("codex.md", "toml", recorded, *changes)
    (tmp_path / ".codex" / "config.toml").write_text(config)
    program = PACKAGES / ".bin" / "codex"
    printed = run(tmp_path, program, "exec", "--skip-git-repo-check", NAME)
    assert has_question(recorded, "input") and printed.strip()


def test_claude_code_runs_a_turn(recorded: Recorded, tmp_path: Path) -> None:
    exports = settings_of("claude_code.md", "bash", recorded, ("=mine", "=arbora-builtin"), ("=8192", "=200"))
    variables = dict(re.findall(r"export (\w+)=(\S+)", exports))
    program = PACKAGES / "@anthropic-ai" / "claude-code" / "cli-wrapper.cjs"
    short = ("--tools", "", "--system-prompt", "Be brief.")
    printed = run(tmp_path, "node", program, "-p", NAME, *short, **variables)
    assert has_question(recorded, "messages") and printed.strip()


def test_continue_runs_a_turn(recorded: Recorded, tmp_path: Path) -> None:
    config = settings_of("continue.md", "yaml", recorded, ("qwen3:8b", "arbora-builtin"))
    (tmp_path / "config.yaml").write_text(config)
    printed = run(
        tmp_path,
        PACKAGES / ".bin" / "cn",
        *("--config", "config.yaml", "-p", NAME),
        CONTINUE_CLI_ENABLE_TELEMETRY="0",
        CONTINUE_TELEMETRY_ENABLED="0",
    )
    assert has_question(recorded, "messages") and printed.strip()
