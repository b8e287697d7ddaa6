"""Grammars that are deep or explode: each costs its own request, and ends or stalls no process of others."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from arbora.grammars import (
    Automaton,
    CompilerError,
    GrammarCompiler,
    GrammarError,
    HostGrammar,
)
from arbora.grammars.errors import ParserFailedError
from arbora.grammars.processes import compiler_pool
from arbora.grammars.service import compiler as compiler_module
from arbora.grammars.service import refused
from grammar_world import EOS, MODEL_VOCAB, allowed, answer, compiled, compiler, server_pid, submit
from hostile_grammars import DEEP, EXPLODING, Hostile, nested_repetitions, reference_chain
from processes import children_of, processor_ticks

BOUND_S = 60.0  # two seconds for each engine, and the delays of a loaded machine
TOO_MANY_STATES = "(a|b)*a(a|b){12}"


@pytest.fixture(scope="module")
def grammars() -> Iterator[GrammarCompiler]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("arbora.grammars.service.compiler_selector.DEADLINE_S", 2.0)
        made = compiler()
        compiled(made, "regex", "warm")
        compiled(made, "grammar", 'start: "warm"')
        yield made
        made.close()


@pytest.fixture(autouse=True)
def usual_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arbora.grammars.service.compiler_selector.DEADLINE_S", 2.0)


def asked(grammars: GrammarCompiler, hostile: Hostile) -> object:
    began = time.monotonic()
    result = compiled(grammars, hostile.kind, hostile.text)
    assert time.monotonic() - began < BOUND_S
    return result


@pytest.mark.parametrize("name", DEEP)
def test_a_deep_grammar_is_compiled_or_refused_and_the_next_one_is_compiled(
    grammars: GrammarCompiler, name: str
) -> None:
    server, builder = server_pid(grammars._followers), server_pid(grammars._builders)
    result = asked(grammars, DEEP[name](5_000))
    assert isinstance(result, Automaton | HostGrammar | GrammarError), result
    assert isinstance(compiled(grammars, "regex", f"after {name}".replace("%", "")), Automaton)
    assert server_pid(grammars._followers) == server and server_pid(grammars._builders) == builder, (
        "they run on"
    )


@pytest.mark.parametrize("name", EXPLODING)
def test_a_grammar_that_explodes_is_ended_in_time(grammars: GrammarCompiler, name: str) -> None:
    result = asked(grammars, EXPLODING[name](1))
    assert isinstance(result, Automaton | HostGrammar | GrammarError), result


def test_a_chain_of_references_is_refused_with_the_limit(grammars: GrammarCompiler) -> None:
    refusal = asked(grammars, reference_chain(1_500))
    assert isinstance(refusal, GrammarError)
    assert "$ref" in str(refusal) and "1000" in str(refusal)
    assert not isinstance(asked(grammars, reference_chain(300)), GrammarError)


def test_a_regex_that_asks_for_too_much_text_is_refused_with_the_limit(grammars: GrammarCompiler) -> None:
    refusal = asked(grammars, nested_repetitions(7))
    assert isinstance(refusal, GrammarError) and "1,000,000" in str(refusal)


def test_the_scheduler_takes_no_memory_for_grammars_that_are_refused(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arbora.grammars.service.compiler_selector.DEADLINE_S", 0.3)
    patterns = json.loads(EXPLODING["intersected patterns"](0).text)["allOf"]
    before = memory(os.getpid())
    for number in range(6):
        asked(grammars, Hostile("regex", f"(x{{1000}}){{990}}(a|b){{0,{number + 1}}}"))
        asked(grammars, Hostile("json_schema", json.dumps({"allOf": patterns, "title": str(number)})))
    assert memory(os.getpid()) - before < 30 << 20


def memory(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_compiling_has_a_limit_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    start = "from arbora.grammars.host import server; server.COMPILE_BYTES = 8 << 20; server.main()"
    monkeypatch.setattr(compiler_module, "HOST_START", start)
    grammars = compiler()
    terminals = "\n".join(f"T{i}: /x{i}(a|b)*[a-z]{{9}}/" for i in range(9_000))
    result = compiled(grammars, "grammar", f"start: {' | '.join(f'T{i}' for i in range(9_000))}\n{terminals}")
    assert isinstance(result, GrammarError) and "too much memory" in str(result)
    grammars.close()


def test_a_grammar_that_ended_its_process_is_refused_at_once_for_some_minutes(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = DEEP["Lark rules"](20_001)
    first = asked(grammars, chain)
    forks = grammars._followers._last_number
    again = asked(grammars, chain)
    assert isinstance(first, GrammarError) and str(again) == str(first)
    assert grammars._followers._last_number == forks, "no process was started for it"
    monkeypatch.setattr(grammars._refused, "_clock", lambda: time.monotonic() + refused.REFUSED_S + 1)
    assert str(asked(grammars, chain)) == str(first)
    assert grammars._followers._last_number > forks


def test_a_small_schema_of_another_tenant_does_not_wait_for_all_hostile_ones(
    grammars: GrammarCompiler,
) -> None:
    slow = 12
    for number in range(slow):
        text = f"root ::= r0 # {number}\n" + DEEP["GBNF rules"](20_000).text.partition("\n")[2]
        submit(grammars, f"slow{number}", "grammar", text, tenant="hostile")
    answer(grammars, "slow0")
    submit(grammars, "small", "json_schema", '{"enum":["of another tenant"]}', tenant="other")
    assert isinstance(answer(grammars, "small"), Automaton)
    assert len(grammars._tickets) >= slow // 2
    for number in range(slow):
        grammars.cancel(f"slow{number}")


def followed(grammars: GrammarCompiler, text: str) -> HostGrammar:
    grammar = compiled(grammars, "grammar", text)
    assert isinstance(grammar, HostGrammar)
    return grammar


def process_of(grammar: HostGrammar) -> int:
    """The pid of the process that follows the grammar."""
    pid = grammar._connection.process._pid
    assert pid is not None
    return pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP])
def test_a_process_that_dies_or_stalls_ends_the_requests_that_follow_its_grammar_and_no_others(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr("arbora.grammars.host.grammar.ANSWER_DEADLINE_S", 0.5)
    other = followed(grammars, f'start: "other{number}" /[a-z]+/').matcher()
    grammar = followed(grammars, f'start: "{number}" /[a-z]+/')
    first, second = grammar.matcher(), grammar.matcher()
    assert first.forced_text().text == str(int(number)).encode()
    os.kill(process_of(grammar), number)
    error = first.consume(ord("1"))
    assert error is not None and "can't be followed" in str(error)
    mask = np.zeros(-(-MODEL_VOCAB // 32), np.int32)
    second.fill_mask(mask)
    assert allowed(mask) == {EOS}, "the reply ends with the next token"
    assert str(second.consume(EOS)) == str(error)
    assert other.consume(ord("o")) is None
    assert isinstance(compiled(grammars, "grammar", f'start: "next{number}"'), HostGrammar)


def test_a_grammar_on_which_llguidance_fails_is_blamed_for_the_end_of_its_replies(
    grammars: GrammarCompiler,
) -> None:
    grammar = followed(grammars, 'start: B+ %json {}\nB: "b" | "c"\n%ignore / /')
    first, second = grammar.matcher(), grammar.matcher()
    assert first.consume(ord("b")) is None
    first.append([ord(" ")])
    for matcher in (first, second):
        mask = np.zeros(-(-MODEL_VOCAB // 32), np.int32)
        matcher.fill_mask(mask)
        error = matcher.consume(ord("b"))
        assert isinstance(error, GrammarError), error
        assert "can't be followed: llguidance fails at it" in str(error) and "backtrace" not in str(error)
    again = followed(grammars, 'start: B+ %json {}\nB: "b" | "c"\n%ignore / /')
    assert again is not grammar
    assert again.matcher().consume(ord("b")) is None


def test_a_grammar_that_needs_too_many_items_of_the_parser_is_blamed_for_the_end_of_its_replies(
    grammars: GrammarCompiler,
) -> None:
    rules = [f"r{i}" for i in range(2_100)]
    texts = "\n".join(f'{rule}: "{rule}"' for rule in rules)
    error = followed(grammars, f"start: /[a-z]/ ({' | '.join(rules)})\n{texts}").matcher().consume(ord("b"))
    assert isinstance(error, GrammarError), error
    assert "can't be followed" in str(error) and "the most is 2,000" in str(error)


def test_a_grammar_on_which_llguidance_always_fails_is_refused_after_a_few_processes(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'start: C+ %json {}\nC: "b" | "c"\n%ignore / /'
    for _ in range(refused.PARSER_FAILURES):
        matcher = followed(grammars, text).matcher()
        matcher.append([ord("b"), ord(" ")])
        assert isinstance(matcher.consume(ord("b")), GrammarError)
    forks = grammars._followers._last_number
    assert "llguidance fails at it" in str(compiled(grammars, "grammar", text))
    assert grammars._followers._last_number == forks, "no process was started for it"
    monkeypatch.setattr(grammars._refused, "_clock", lambda: time.monotonic() + refused.REFUSED_S + 1)
    assert followed(grammars, text).matcher().consume(ord("b")) is None


def test_failures_of_the_parser_are_forgotten_in_time_and_for_the_oldest_grammars(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refused, "MAX_REFUSED", 10)
    now = 0.0
    known = refused.RefusedGrammars(lambda: now)
    for _ in range(5):
        known.note(b"rare", ParserFailedError("panic"))
        now += refused.REFUSED_S
    assert known.find_reason(b"rare") is None
    for number in range(100):
        known.note(b"%d" % number, ParserFailedError("panic"))
    assert len(known._failures) == 10


def test_the_process_of_a_grammar_ends_when_nothing_refers_to_it(grammars: GrammarCompiler) -> None:
    grammar = followed(grammars, 'start: "kept" /[a-z]+/')
    matcher, process = grammar.matcher(), grammar._connection.process.number
    digest = next(reversed(grammars._cache._futures))
    grammars._cache.forget(digest, grammars._cache._futures[digest])
    del grammar
    error = matcher.consume(ord("k"))
    assert error is None
    assert process in grammars._followers._tenants
    del matcher
    assert process not in grammars._followers._tenants


@pytest.mark.parametrize(
    ("kind", "source"), [("grammar", "start: missing"), ("json_schema", {"$dynamicRef": "http://x/y"})]
)
def test_a_grammar_that_is_refused_keeps_no_process(
    grammars: GrammarCompiler, kind: str, source: object
) -> None:
    live = grammars._followers.live
    refused = compiled(grammars, kind, source)
    assert isinstance(refused, GrammarError)
    assert grammars._followers.live == live


def test_nothing_is_kept_of_matchers_that_were_deleted_before_their_answers_came(
    grammars: GrammarCompiler,
) -> None:
    grammar = followed(grammars, 'start: "left" /[a-z]+/')
    for _ in range(50):
        grammar.matcher()
    last = grammar.matcher()
    assert last.consume(ord("l")) is None
    assert len(grammar._connection._states) <= 2 and not grammar._connection._awaited


def test_many_rows_of_one_grammar_are_answered_even_if_none_reads_meanwhile(
    grammars: GrammarCompiler,
) -> None:
    grammar = followed(grammars, 'start: "many" /[a-z]+/')
    matchers = [grammar.matcher() for _ in range(700)]
    for token in b"manyrows":
        for matcher in matchers:
            matcher.begin(token)
        assert [matcher.consume(token) for matcher in matchers] == [None] * len(matchers)


def test_grammars_are_not_shared_between_scopes(grammars: GrammarCompiler) -> None:
    schema = {"const": "shared?"}
    first = compiled(grammars, "json_schema", schema, scope="one")
    assert compiled(grammars, "json_schema", schema, scope="one") is first
    second = compiled(grammars, "json_schema", schema, scope="two")
    assert isinstance(first, Automaton) and isinstance(second, Automaton)
    assert second is not first and second.key != first.key


def test_no_more_processes_are_started_than_the_limit(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_pool, "MAX_PROCESSES", grammars._followers.live)
    busy = compiled(grammars, "grammar", 'start: "one more"')
    assert "try again later" in str(busy) and not isinstance(busy, GrammarError | CompilerError)


def slow_lark(comment: str) -> str:
    terminals = "\n".join(f"T{i}: /x{i}(a|b)*[a-z]{{9}}/" for i in range(6_000))
    return f"// {comment}\nstart: {' | '.join(f'T{i}' for i in range(6_000))}\n{terminals}"


def test_grammars_that_were_ended_keep_no_process(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arbora.grammars.service.compiler_selector.DEADLINE_S", 0.01)
    before = grammars._followers.live
    gc.disable()  # counting references is enough
    try:
        for number in range(3):
            text = slow_lark(f"ended {number}")
            assert "takes more than 0.01 s" in str(compiled(grammars, "grammar", text))
        deadline = time.monotonic() + 5.0
        while grammars._followers.live > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert grammars._followers.live == before
    finally:
        gc.enable()


def test_a_job_may_wait_for_the_processor_as_long_as_it_takes_little_of_it(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arbora.grammars.service.compiler_selector.DEADLINE_S", 1.0)
    compiled(grammars, "regex", "warm again")
    server = server_pid(grammars._builders)
    assert server is not None
    builders = children_of(server)
    before = {builder: processor_ticks(builder) for builder in builders}
    numbers = {f"p{low}": {"type": "integer", "minimum": low, "maximum": 10**9 + low} for low in range(60)}
    submit(grammars, "paused", "json_schema", json.dumps({"properties": numbers}))
    while not (running := [each for each in builders if processor_ticks(each) > before[each] + 2]):
        time.sleep(0.005)
    os.kill(running[0], signal.SIGSTOP)
    time.sleep(1.2)
    os.kill(running[0], signal.SIGCONT)
    assert isinstance(answer(grammars, "paused"), Automaton)


def test_a_grammar_that_used_its_processor_time_is_refused_for_some_minutes(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arbora.grammars.service.compiler_selector.DEADLINE_S", 0.02)
    first = compiled(grammars, "grammar", slow_lark("own time"))
    assert "takes more than 0.02 s" in str(first)
    forks = grammars._followers._last_number
    assert str(compiled(grammars, "grammar", slow_lark("own time"))) == str(first)
    assert grammars._followers._last_number == forks, "no process was started for it"


def test_a_grammar_that_is_slow_to_read_delays_no_other(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arbora.grammars.service.compiler_selector.DEADLINE_S", 4.0)
    submit(grammars, "slow", "grammar", "root ::= " + "[" * 200_000)
    assert isinstance(compiled_beside(grammars, "json_schema", {"type": "integer"}), Automaton)


def compiled_beside(grammars: GrammarCompiler, kind: str, source: object) -> object:
    """The compiled grammar, while others may be compiling."""
    submit(grammars, "mine", kind, json.dumps(source))
    results: dict[str, object] = {}
    while len(results) < 2:
        results |= dict(grammars.finished())
        time.sleep(0.001)
    assert isinstance(results["slow"], GrammarError), results["slow"]
    return results["mine"]
