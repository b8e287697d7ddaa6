"""The effect of a fault of our own compiler on requests, with a process that has such a fault."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from arbora.grammars import Automaton, CompilerError, GrammarCompiler, HostGrammar
from arbora.grammars.service import compiler as compiler_module
from arbora.grammars.service.fair_thread_pool import LARGE
from grammar_world import compiled, compiler, server_pid
from processes import children_of, is_alive

START = """
import os, signal, sys
from numba import njit
from arbora.grammars.service import builder, builder_process

def odd(self, key, grammar):
    if "fails" in repr(grammar):
        raise LookupError("no such state")
    if "dies" in repr(grammar):
        os.kill(os.getpid(), signal.SIGUSR1)
    if "leaves" in repr(grammar):
        os.kill(os.getpid(), signal.SIGRTMIN + 1)
    if "babbles" in repr(grammar):
        sys.stdout.buffer.write(b"cnowhere\\nnothing\\n.")
    if "compiles" in repr(grammar):
        njit(lambda number: number + 1)(1)
    return build(self, key, grammar)

build, builder.AutomatonBuilder.build = builder.AutomatonBuilder.build, odd
builder_process.main()
"""
CAUSES = {
    "fails": "LookupError: no such state",
    "dies": "SIGUSR1",
    "leaves": f"signal {signal.SIGRTMIN + 1}",
}


@pytest.fixture(scope="module")
def grammars() -> Iterator[GrammarCompiler]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler_module, "BUILDER_START", START)
        patch.setattr(
            "arbora.grammars.service.compiler_selector.DEADLINE_S", 60.0
        )  # a busy machine is no reason to fail
        made = compiler()
        yield made
        made.close()


def only_warning(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.levelno == logging.WARNING
    return record.getMessage()


@pytest.mark.parametrize(
    ("kind", "source", "fault"),
    [
        ("json_schema", {"const": "{}"}, "fails"),
        ("json_schema", {"const": "{}"}, "dies"),
        ("regex", "{}", "fails"),
        ("regex", "{}", "leaves"),
        ("choice", ["{}"], "dies"),
        ("structural_tag", {"type": "const_string", "value": "{}"}, "fails"),
    ],
)
def test_llguidance_serves_grammars_on_which_our_compiler_fails_and_the_log_says_why(
    grammars: GrammarCompiler, caplog: pytest.LogCaptureFixture, kind: str, source: object, fault: str
) -> None:
    text = (source if isinstance(source, str) else json.dumps(source)).replace("{}", fault)
    served = compiled(grammars, kind, text)
    assert isinstance(served, HostGrammar)
    assert compiled(grammars, kind, text) is served
    said = only_warning(caplog)
    assert CAUSES[fault] in said and fault in said.partition(CAUSES[fault])[0]
    assert isinstance(compiled(grammars, kind, text.replace(fault, "goes")), Automaton)


@pytest.mark.parametrize(
    ("kind", "text", "fault"),
    [
        ("json_schema", '{"not": {"const": "%s"}}', "fails"),
        ("structural_tag", '{"type": "json_schema", "json_schema": {"not": {"const": "%s"}}}', "fails"),
    ],
)
def test_a_grammar_that_llguidance_does_not_cover_either_is_not_blamed_and_is_tried_again(
    grammars: GrammarCompiler, caplog: pytest.LogCaptureFixture, kind: str, text: str, fault: str
) -> None:
    assert isinstance(compiled(grammars, kind, text % fault), CompilerError)
    assert CAUSES[fault] in only_warning(caplog)
    caplog.clear()
    assert isinstance(compiled(grammars, kind, text % fault), CompilerError)
    assert CAUSES[fault] in only_warning(caplog)


def test_a_grammar_that_ended_its_process_is_not_sent_to_another_one(
    grammars: GrammarCompiler, caplog: pytest.LogCaptureFixture
) -> None:
    schema = {"not": {"const": "dies"}}
    first = compiled(grammars, "json_schema", schema)
    assert isinstance(first, CompilerError) and "SIGUSR1" in only_warning(caplog)
    caplog.clear()
    again = compiled(grammars, "json_schema", schema)
    assert isinstance(again, CompilerError) and str(again) == str(first)
    assert not caplog.records


def test_keywords_are_left_out_where_that_is_allowed_even_if_our_compiler_fails(
    grammars: GrammarCompiler,
) -> None:
    schema = {"type": "string", "not": {"const": "fails"}}
    served = compiled(grammars, "json_schema", schema, unenforced="allow")
    assert isinstance(served, HostGrammar) and served.left_out == (("not", "#/not"),)


def test_a_server_that_died_between_two_grammars_is_blamed_on_neither(
    grammars: GrammarCompiler, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(compiled(grammars, "regex", "before"), Automaton)
    server = server_pid(grammars._builders)
    assert server is not None
    builders = children_of(server)
    assert builders
    os.kill(server, signal.SIGKILL)
    while any(is_alive(pid) for pid in (server, *builders)):
        time.sleep(0.01)
    assert isinstance(compiled(grammars, "regex", "behind"), Automaton)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_grammar_is_not_blamed_for_a_builder_that_died_while_it_had_no_job(
    grammars: GrammarCompiler, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(compiled(grammars, "regex", "idle before"), Automaton)
    server = server_pid(grammars._builders)
    assert server is not None
    for builder in children_of(server):
        os.kill(builder, signal.SIGKILL)
        while Path(f"/proc/{builder}").exists():
            time.sleep(0.01)
    assert isinstance(compiled(grammars, "regex", "idle behind"), Automaton)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_output_of_a_process_is_not_an_answer(
    grammars: GrammarCompiler, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(compiled(grammars, "regex", "babbles"), Automaton)
    assert isinstance(compiled(grammars, "regex", "speaks"), Automaton)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_process_that_cannot_be_started_is_blamed_on_no_grammar(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiler_module, "BUILDER_START", "raise SystemExit(3)")
    grammars = compiler()
    assert isinstance(compiled(grammars, "regex", "ab"), HostGrammar)
    assert "exit status 3" in only_warning(caplog)
    grammars.close()


def test_the_log_says_once_that_processes_compile_their_own_code_and_only_if_they_do(
    grammars: GrammarCompiler, caplog: pytest.LogCaptureFixture
) -> None:
    assert isinstance(compiled(grammars, "regex", "first"), Automaton)
    grammars._is_announced = False  # these sources may be new
    with caplog.at_level(logging.INFO):
        assert isinstance(compiled(grammars, "regex", "second"), Automaton)
        assert not caplog.messages
        large = json.dumps({"const": "compiles", "title": LARGE * "a"})
        for kind, text in (("regex", "compiles"), ("regex", "compiles once more"), ("json_schema", large)):
            assert isinstance(compiled(grammars, kind, text), Automaton)
    assert [message.partition(",")[0] for message in caplog.messages] == ["compiling grammar kernels"]
