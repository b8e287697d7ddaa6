"""Compiled grammars: exact masks, clear refusals, nothing that blocks the caller."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from arbora.grammars import Automaton, GrammarCompiler, GrammarError, HostGrammar
from arbora.grammars.errors import TooLargeError
from arbora.grammars.machine import automaton as automaton_module
from arbora.grammars.machine.closing import Closing
from arbora.grammars.machine.stack_automaton import StackAutomaton
from arbora.grammars.processes.compiler_process import CompilerProcess, GoOn
from arbora.grammars.processes.messages import CompileJob, Outcome
from arbora.grammars.service.compiler import LARGE_THREADS, MAX_TEXT, THREADS
from arbora.grammars.service.fair_thread_pool import LARGE
from grammar_world import CALL_TOKEN, EOS, answer, compiled, compiler, random_output, submit, vocabulary
from mask_tables import state_mask

PATIENCE_S = 300.0  # longer than a process takes to compile its own code
Ran = tuple[Outcome, CompilerProcess]


@pytest.fixture(scope="module")
def grammars() -> Iterator[GrammarCompiler]:
    made = compiler()
    yield made
    made.close()


@pytest.mark.parametrize("pattern", ["(yes|no|yesno)", "[a-c]{2,5}", "ab*c?é", "(?i:YES) (1|2)+", ".{0,3}"])
def test_a_mask_allows_a_token_exactly_when_its_bytes_lead_somewhere(
    grammars: GrammarCompiler, pattern: str
) -> None:
    automaton = compiled(grammars, "regex", pattern)
    assert isinstance(automaton, Automaton)
    words = vocabulary()
    for state in range(len(automaton.machine.transitions)):
        expected = {
            token for token in range(words.size) if _leads_on(automaton, state, words.token_bytes(token))
        }
        expected -= {CALL_TOKEN, EOS}
        got = state_mask(automaton.tables, state).allowed
        assert got - {EOS} == expected


def _leads_on(automaton: Automaton, state: int, text: bytes) -> bool:
    for byte in text:
        state = int(automaton.machine.transitions[state, automaton.machine.class_of_byte[byte]])
        if state < 0:
            return False
    return True


def test_the_end_is_allowed_exactly_where_the_text_may_end(grammars: GrammarCompiler) -> None:
    automaton = compiled(grammars, "regex", "a{2,3}")
    assert isinstance(automaton, Automaton)
    state = automaton.machine.start
    ends = []
    for _ in range(4):
        ends.append(EOS in state_mask(automaton.tables, state).allowed)
        state = int(automaton.machine.transitions[state, automaton.machine.class_of_byte[ord("a")]])
    assert ends == [False, False, True, True]


def test_tokens_are_spelled_as_automata_read_them(grammars: GrammarCompiler) -> None:
    words = vocabulary()
    tokens = [ord("x"), 256, EOS, 258, words.size - 3]
    assert grammars.spelled(np.array(tokens, np.int32)) == b"x" + b"".join(
        words.token_bytes(token) for token in (256, 258, words.size - 3)
    )
    assert grammars.spelled(np.zeros(0, np.int32)) == b""


def test_equal_masks_are_kept_once(grammars: GrammarCompiler) -> None:
    automaton = compiled(grammars, "regex", "[a-z]{100}")
    assert isinstance(automaton, Automaton)
    assert len(automaton.tables.masks) + len(automaton.tables.lists) < 15
    assert len(automaton.tables.states) > 100


def test_a_choice_is_one_of_its_strings(grammars: GrammarCompiler) -> None:
    automaton = compiled(grammars, "choice", ["yes", "yes.no", "é{"])
    assert isinstance(automaton, Automaton)
    for text, fits in [("yes", True), ("yes.no", True), ("é{", True), ("yesXno", False), ("", False)]:
        state = automaton.machine.start
        for byte in text.encode():
            state = (
                int(automaton.machine.transitions[state, automaton.machine.class_of_byte[byte]])
                if state >= 0
                else -1
            )
        accepts = state >= 0 and EOS in state_mask(automaton.tables, state).allowed
        assert accepts == fits


@pytest.mark.parametrize("choices", [[], [""], [1], "yes", {"a": 1}])
def test_a_choice_must_be_a_list_of_strings(grammars: GrammarCompiler, choices: object) -> None:
    result = compiled(grammars, "choice", choices if not isinstance(choices, str) else f'"{choices}"')
    assert isinstance(result, GrammarError)


def test_an_automaton_too_large_for_tables_is_left_to_llguidance(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("arbora.grammars.service.compiler_selector.DEADLINE_S", 2.0)
        grammar = compiled(grammars, "regex", r"(.*a){200}[^b]{0,9999}")
    assert isinstance(grammar, HostGrammar)
    assert isinstance(compiled(grammars, "regex", "after"), Automaton)


def test_the_same_grammar_is_compiled_once(grammars: GrammarCompiler) -> None:
    assert compiled(grammars, "regex", "once?") is compiled(grammars, "regex", "once?")


def test_a_cancelled_ticket_is_never_answered(grammars: GrammarCompiler) -> None:
    submit(grammars, "gone", "regex", "gone")
    grammars.cancel("gone")
    assert len(grammars._tickets) == 0
    assert isinstance(compiled(grammars, "regex", "gone"), Automaton)


SLOW_SCHEMA = {
    "type": "object",
    "properties": {f"p{i}": {"type": "integer", "minimum": i, "maximum": 10**9 + i} for i in range(900)},
}


def test_a_slow_schema_delays_no_other() -> None:
    grammars = compiler()
    for number in range(LARGE_THREADS):
        submit(grammars, f"slow{number}", "json_schema", json.dumps({**SLOW_SCHEMA, "title": str(number)}))
    submit(grammars, "quick", "json_schema", '{"enum":[1]}')
    assert isinstance(answer(grammars, "quick"), Automaton)
    grammars.close()


@pytest.mark.parametrize("may_go_on", [True, False])
def test_a_slow_grammar_goes_on_as_a_long_job_or_is_built_again_as_one(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, may_go_on: bool
) -> None:
    asked, run = list[bool](), grammars._builders.run

    def noted(job: CompileJob, tenant: str, go_on: GoOn) -> Ran:
        def answer() -> bool:
            asked.append(may_go_on or len(asked) > 0)
            return asked[-1] and go_on()

        return run(job, tenant, answer)

    monkeypatch.setattr(grammars._builders, "run", noted)
    assert isinstance(compiled(grammars, "regex", f"(a|b)*a(a|b){{12}}{may_go_on}"), Automaton)
    assert asked == [True] if may_go_on else [False, True]
    assert isinstance(compiled(grammars, "regex", f"a{{3}}quick{may_go_on}"), Automaton)
    assert len(asked) == (1 if may_go_on else 2), "a quick one does not ask"


def test_a_small_schema_is_ready_before_earlier_large_ones(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, run = threading.Event(), grammars._builders.run

    def held(job: CompileJob, tenant: str, go_on: GoOn) -> Ran:
        if len(job.spec.text) > LARGE:
            end.wait(PATIENCE_S)
            raise GrammarError("it was held")
        return run(job, tenant, go_on)

    monkeypatch.setattr(grammars._builders, "run", held)
    submit_large(grammars)
    submit(grammars, "small", "json_schema", '{"enum":["before"]}')
    assert isinstance(answer(grammars, "small"), Automaton)
    assert not end.is_set() and len(grammars._tickets) == 2 * THREADS
    cancel_large(grammars)
    end.set()


def test_large_schemas_in_llguidance_delay_no_small_one(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, run = threading.Event(), grammars._followers.run

    def held(job: CompileJob, tenant: str, go_on: GoOn) -> Ran:
        if len(job.spec.text) > LARGE:
            end.wait(PATIENCE_S)
        return run(job, tenant, go_on)

    def too_large(job: CompileJob, tenant: str, go_on: GoOn) -> Ran:
        raise TooLargeError("many states")

    monkeypatch.setattr(grammars._followers, "run", held)
    monkeypatch.setattr(grammars._builders, "run", too_large)
    submit_large(grammars, "at the host")
    submit(grammars, "small", "json_schema", '{"enum":["at the host"]}')
    assert isinstance(answer(grammars, "small"), HostGrammar)
    assert not end.is_set() and len(grammars._tickets) == 2 * THREADS
    cancel_large(grammars)
    end.set()


def submit_large(grammars: GrammarCompiler, title: str = "large") -> None:
    """Submits more large grammars than there are threads."""
    for number in range(2 * THREADS):
        schema = {**SLOW_SCHEMA, "title": f"{title}{number}"}
        submit(grammars, f"large{number}", "json_schema", json.dumps(schema))


def cancel_large(grammars: GrammarCompiler) -> None:
    for number in range(2 * THREADS):
        grammars.cancel(f"large{number}")


def test_a_cancelled_grammar_that_has_not_begun_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = compiler()
    end, run = threading.Event(), grammars._builders.run
    monkeypatch.setattr(grammars._builders, "run", lambda *job: end.wait(PATIENCE_S) and run(*job))
    submit_large(grammars)
    waiting = json.dumps({"enum": [1], "title": "a" * LARGE})
    submit(grammars, "first", "json_schema", waiting)
    queued = grammars._tickets["first"]
    submit(grammars, "second", "json_schema", waiting)
    grammars.cancel("first")
    assert not queued.cancelled(), "the second waits for it"
    grammars.cancel("second")
    assert queued.cancelled()
    cancel_large(grammars)
    end.set()
    submit(grammars, "third", "json_schema", waiting)
    assert isinstance(answer(grammars, "third"), Automaton)
    grammars.close()


def test_after_a_grammar_that_kills_its_worker_the_next_one_gets_a_new_worker(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("arbora.grammars.service.compiler_selector.DEADLINE_S", 0.05)
        submit(grammars, "slow", "json_schema", json.dumps({"enum": list(range(30_000))}))
        assert not isinstance(answer(grammars, "slow"), Automaton)
    assert isinstance(compiled(grammars, "regex", "then"), Automaton)


@pytest.mark.parametrize("kind", ["json_schema", "regex", "choice"])
def test_a_grammar_that_is_too_long_to_parse_is_refused_with_the_numbers(
    grammars: GrammarCompiler, kind: str
) -> None:
    result = compiled(grammars, kind, "a" * (MAX_TEXT + 1))
    assert isinstance(result, GrammarError)
    assert str(MAX_TEXT + 1) in str(result) and str(MAX_TEXT) in str(result)


@pytest.mark.parametrize(
    ("kind", "source"),
    [("json_schema", "{"), ("regex", "("), ("choice", []), ("structural_tag", {"type": "no such"})],
)
def test_a_grammar_that_neither_engine_can_read_is_refused(
    grammars: GrammarCompiler, kind: str, source: object
) -> None:
    assert isinstance(compiled(grammars, kind, source), GrammarError)


def test_the_ends_of_replies_are_found_before_a_grammar_is_returned(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = list[str]()

    class Recorded(Closing):
        def __init__(self, machine: StackAutomaton) -> None:
            threads.append(threading.current_thread().name)
            super().__init__(machine)

    monkeypatch.setattr(automaton_module, "Closing", Recorded)
    automaton = compiled(grammars, "json_schema", {"type": "object", "required": ["a"]}, closing=True)
    assert isinstance(automaton, Automaton)
    assert automaton.closing.text(automaton.machine.start, automaton.machine.bottom) is not None
    assert [name.startswith("grammars") for name in threads] == [True]


def test_all_host_memory_of_an_automaton_is_counted(grammars: GrammarCompiler) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    plain, closing = (compiled(grammars, "json_schema", schema, closing=closing) for closing in (False, True))
    assert isinstance(plain, Automaton) and isinstance(closing, Automaton)
    machine = plain.machine
    assert plain.host_nbytes > machine.nbytes + plain.tables.nbytes
    assert closing.host_nbytes > plain.host_nbytes


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "array", "items": {"enum": [1]}, "minItems": 100_000}, ["the schema is too large"]),
        (
            {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]},
            ["'$ref' at #/properties/a/$ref", "refers to itself"],
        ),
        ({"$ref": "#"}, ["'$ref' at #/$ref", "refers to itself"]),
        (
            {"type": "object", "properties": {"a": {"type": "string", "pattern": r"^\bfoo\b$"}}},
            ["'pattern' at #/properties/a/pattern", "word boundary", '"unenforced": "allow"'],
        ),
    ],
)
def test_a_schema_that_no_engine_can_follow_is_refused_before_the_reply_begins(
    grammars: GrammarCompiler, schema: dict[str, object], said: list[str]
) -> None:
    submit(grammars, "odd", "json_schema", json.dumps(schema))
    error = answer(grammars, "odd")
    assert isinstance(error, GrammarError)
    assert all(words in str(error) for words in said), error
    assert "verbose" not in str(error)


def test_a_regex_with_a_part_that_matches_nothing_is_refused_in_plain_words(
    grammars: GrammarCompiler,
) -> None:
    submit(grammars, "odd", "regex", r"a[^\s\S]")
    assert str(answer(grammars, "odd")) == "the regex has a part that matches no text"


def call_of(function: str, parameters: object) -> dict[str, object]:
    content = {"type": "json_schema", "json_schema": parameters, "function": function}
    return {"type": "tag", "begin": f"<{function}>", "content": content, "ends": ["</call>"]}


LARGE_PARAMETERS = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "pattern": "^(a|b)*a(a|b){12}$"},
        "b": {"not": {"type": "string"}},
    },
    "required": ["a", "b"],
}


@pytest.mark.parametrize("before", [[], [call_of("other", {"type": "object"})]], ids=["alone", "two"])
def test_a_function_whose_parameters_are_too_large_is_named(
    grammars: GrammarCompiler, before: list[dict[str, object]]
) -> None:
    tags = [*before, call_of("huge", LARGE_PARAMETERS)]
    refused = compiled(grammars, "structural_tag", {"type": "or", "elements": tags})
    assert isinstance(refused, GrammarError)
    assert "too large: the parameters of the function 'huge'" in str(refused)
    assert refused.function == "huge"


def test_the_parameters_of_the_only_function_are_blamed_for_a_timeout(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_long(job: CompileJob, tenant: str, go_on: GoOn) -> Ran:
        raise TooLargeError("it takes more than 2 s")

    monkeypatch.setattr(grammars._builders, "run", too_long)
    huge = call_of("huge", LARGE_PARAMETERS)
    for tags, function in (([huge], "huge"), ([huge, call_of("other", {"type": "object"})], "")):
        refused = compiled(grammars, "structural_tag", {"type": "or", "elements": tags})
        assert isinstance(refused, GrammarError) and refused.function == function


@pytest.mark.parametrize("text", ['// a comment\nstart: "a" | "b"', 'root ::= "a" | "b"'])
def test_a_grammar_goes_to_llguidance_alone(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(grammars._builders, "run", None)
    assert isinstance(compiled(grammars, "grammar", text), HostGrammar)


def test_a_grammar_in_gbnf_may_have_a_rule_with_the_name_of_larks_first_rule(
    grammars: GrammarCompiler,
) -> None:
    grammar = compiled(grammars, "grammar", 'root ::= start "\\"start" # start\nstart ::= "a"')
    assert isinstance(grammar, HostGrammar)
    assert random_output(grammar, seed=0) == b'a"start'
