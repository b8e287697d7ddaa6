"""`arbora run`: which program of a file runs, its arguments, and what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from arbora.frontend.cli.main import main
from served import Served

PROGRAM = """
import arbora as ab

@ab.program
def ask(s, question: str, tokens: int = 3, *, seed=0):
    s += ab.user(question)
    s += ab.assistant(ab.gen("answer", max_tokens=tokens, temperature=0, seed=seed))
    s += ab.user("Is it short?")
    s += ab.assistant(ab.select("short", ["yes", "no"]))
    return tokens
"""
SECOND = """
@ab.program
def other(s):
    s += "A text "
    s += ab.gen("text", max_tokens=2)
"""
BROKEN = """
import arbora as ab

@ab.program
def main(s):
    s += ab.user("Hi")
    s += ab.assistant(ab.gen("answer", regex="("))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "ask.py"
    path.write_text(PROGRAM)
    return path


def test_the_only_program_runs_and_prints_its_values(
    program: Path, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = program.with_name("trace.html")
    arguments = [str(program), "question=What is 5?", "tokens=4", "--url", served.url, "--trace", str(trace)]
    assert main(["run", *arguments]) == 0
    said = capsys.readouterr()
    lines = dict(line.split(": ", 1) for line in said.out.splitlines() if ": " in line)
    assert lines["short"] in ("yes", "no") and lines["result"] == "4" and "answer" in lines
    assert "2 calls" in said.err
    assert trace.read_text().startswith("<!doctype html>")


def test_json_has_the_values_the_result_and_the_trace(
    program: Path, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    question = program.with_name("question.txt")
    question.write_text("What is 6?")
    assert main(["run", str(program), "--url", served.url, "--json", f"question=@{question}"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["values"]) == {"answer", "short"} and found["result"] == 3
    assert [call["kind"] for call in found["trace"]["calls"]] == ["gen", "select"]
    assert found["trace"]["prompt_tokens"] >= found["trace"]["cached_tokens"] > 0


def test_one_of_several_programs_is_chosen_by_name(
    program: Path, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    program.write_text(PROGRAM + SECOND)
    assert main(["run", str(program), "--url", served.url]) == 2
    assert "it has several programs. Choose one with --program: ask, other." in capsys.readouterr().err
    assert main(["run", str(program), "--url", served.url, "--program", "other", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["values"]) == {"text"}
    program.write_text(PROGRAM + SECOND.replace("other", "main"))
    assert main(["run", str(program), "--url", served.url, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["values"]) == {"text"}


def test_a_failed_statement_is_named_and_the_exit_code_is_1(
    program: Path, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    program.write_text(BROKEN)
    assert main(["run", str(program), "--url", served.url]) == 1
    said = capsys.readouterr().err
    assert said.startswith("arbora: error: ") and "ask.py:7" in said and "regex" in said


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "the program needs the argument question: add question=VALUE."),
        (("questoin=x",), "the program has no parameter questoin. Did you mean question? It has question,"),
        (("question=x", "tokens=three"), "argument tokens=three: the program's parameter is annotated as"),
        (("what",), "argument what: expected NAME=VALUE."),
        (("question=@/no/file",), "argument question=@/no/file: the file can't be read (No such file"),
        (("question=x", "--program", "aks"), "--program aks: "),
        (("question=x", "--url", "gopher:x"), "--url gopher:x: "),
        (("question=x", "--url", "127.0.0.1:1"), "no answer from http://127.0.0.1:1 "),
    ],
)
def test_a_wrong_argument_is_named(
    program: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str
) -> None:
    assert main(["run", str(program), *arguments]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "there is no such file"),
        ("x = 1\n", "Write @arbora.program above"),
        ("x = 1\ndef f(:\n", "empty.py: line 2: invalid syntax."),
    ],
)
def test_a_file_without_a_program_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, expected: str
) -> None:
    path = tmp_path / "empty.py"
    if text is not None:
        path.write_text(text)
    assert main(["run", str(path)]) == 2
    assert expected in capsys.readouterr().err
