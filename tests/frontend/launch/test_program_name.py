"""The command that messages tell the user to run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from arbora.frontend.launch.program_name import name_program, program_name


def test_messages_name_the_program_as_it_was_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "arbora"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert program_name() == str(program)
    assert name_program("Use `arbora models`, not arbora.") == f"Use `{program} models`, not arbora."
    monkeypatch.setenv("PATH", str(program.parent))
    assert program_name() == "arbora"
    monkeypatch.setattr(sys, "argv", ["/somewhere/__main__.py"])
    assert program_name() == "arbora"
