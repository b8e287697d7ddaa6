"""Requests that begin with llguidance's matcher while their automaton is still being compiled."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from arbora.grammars import Automaton, GrammarError, HostGrammar
from arbora.grammars.errors import TooLargeError
from arbora.grammars.host import client as host_client
from arbora.grammars.host.endless import may_be_endless
from arbora.grammars.service.compiler import THREADS
from arbora.grammars.service.jobs import Job, Result
from arbora.grammars.service.worker import AutomatonWorker
from grammar_world import answer, compiled, compiler, submit

PATIENCE_S = 300.0  # also while a worker compiles its own code
LIST = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
    "required": ["next"],
}
ENDLESS = {
    "type": "object",
    "properties": {"b": {"type": "integer"}, "a": {"$ref": "#"}},
    "required": ["a", "b"],
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CONTENT = {"type": "json_schema", "json_schema": CITY}
CALL = {
    "type": "tag",
    "begin": "<tool_call>",
    "content": CONTENT,
    "ends": ["</tool_call>"],
}

LLAMA = {
    "type": "tag",
    "begin": '<tool_call>{"name": "f", "parameters": ',
    "content": CONTENT,
    "ends": ["}"],
}
KEYWORDS = {
    "type": "keywords",
    "members": [{"name": "city", "json_schema": {"type": "string"}, "required": True}],
    "separators": [", ", ": "],
}


class World:
    """A compiler without grace, whose automata are there once `let_go` is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told = threading.Semaphore(0)
        self.grammars = compiler(grace_s=0.0, on_finished=self.told.release)
        self._go, self._build = threading.Event(), self.grammars._workers.build
        monkeypatch.setattr(self.grammars._workers, "build", self._held)

    def _held(self, job: Job) -> Result:
        assert self._go.wait(PATIENCE_S)
        return self._build(job)

    def let_go(self) -> None:
        self._go.set()

    def hold(self) -> None:
        self._go.clear()

    def settle(self) -> None:
        """Waits until all that was begun is compiled and remembered."""
        self.let_go()
        works = list(self.grammars._works.values())
        while self.grammars._works:
            assert self.told.acquire(timeout=PATIENCE_S)
            self.grammars.finished()
        assert all(work.lasting.done() for work in works)

    def begun(self, kind: str, source: object) -> HostGrammar:
        """What a request begins with while its automaton is being compiled, not waiting to be."""
        text = source if isinstance(source, str) else json.dumps(source)
        submit(self.grammars, "first", kind, text)
        (work,) = self.grammars._works.values()
        while not work.lasting.running():
            time.sleep(0.001)
        first = answer(self.grammars, "first")
        assert isinstance(first, HostGrammar)
        return first

    def waits(self, kind: str, source: object, **options: Any) -> bool:
        """Whether a request waits, though llguidance has made what it can of the grammar."""
        text = source if isinstance(source, str) else json.dumps(source)
        submit(self.grammars, "waiting", kind, text, **options)
        assert self.grammars.finished() == []
        (work,) = self.grammars._works.values()
        work.attempt.begun().exception(PATIENCE_S)
        return self.grammars.finished() == []


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(monkeypatch)
    yield made
    made.let_go()
    made.grammars.close()


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json_schema", CITY),
        ("json_schema", LIST),
        ("json_object", ""),
        ("regex", "[ab]{3}"),
        ("choice", ["yes", "no"]),
        ("structural_tag", {"type": "tags_with_separator", "tags": [CALL], "separator": "\n"}),
        ("structural_tag", {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [CALL]}),
        ("structural_tag", {**CALL, "content": {**CONTENT, "otherwise": "object"}}),
        (
            "structural_tag",
            {"type": "thinking", "start": "(", "end": ")", "is_open": True, "content": CONTENT},
        ),
    ],
)
def test_a_request_begins_with_llguidance_and_the_next_one_has_the_automaton(
    world: World, kind: str, source: object
) -> None:
    first = world.begun(kind, source)
    assert compiled(world.grammars, kind, source) is first
    world.settle()
    assert isinstance(compiled(world.grammars, kind, source), Automaton)


def test_a_request_is_served_while_the_first_process_is_still_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go, start = threading.Event(), AutomatonWorker.start

    def held(worker: AutomatonWorker) -> None:
        assert go.wait(PATIENCE_S)
        start(worker)

    monkeypatch.setattr(AutomatonWorker, "start", held)
    grammars = compiler(grace_s=0.0)
    assert isinstance(compiled(grammars, "json_schema", CITY), HostGrammar)
    assert not grammars._workers._idle
    submit(grammars, "seeded", "json_schema", json.dumps(CITY), reproducible=True)
    go.set()
    assert isinstance(answer(grammars, "seeded"), Automaton)
    grammars.close()


def test_no_grammar_is_blamed_for_the_start_time_of_llguidance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_large(job: Job) -> Result:
        raise TooLargeError("many states")

    start = "import time; time.sleep(3); from arbora.grammars.host.server import main; main()"
    monkeypatch.setattr(host_client, "_START", start)
    monkeypatch.setattr("arbora.grammars.service.routes.DEADLINE_S", 1.0)
    grammars = compiler()
    monkeypatch.setattr(grammars._workers, "build", too_large)
    assert isinstance(compiled(grammars, "regex", "[ab]"), HostGrammar)
    grammars.close()


@pytest.mark.parametrize(
    ("kind", "source", "options"),
    [
        ("json_schema", CITY, {"property_order": "any"}),
        ("json_schema", CITY, {"closing": True}),
        ("json_schema", CITY, {"reproducible": True}),
        ("json_schema", {"not": {"type": "string"}}, {}),
        ("json_schema", {"type": "string", "format": "no-such"}, {"unenforced": "allow"}),
        ("json_schema", ENDLESS, {}),
        ("structural_tag", CALL, {"unenforced": "allow"}),
        (
            "structural_tag",
            {"type": "sequence", "elements": [{"type": "any_text"}, {"type": "const_string", "value": "a"}]},
            {},
        ),
        ("structural_tag", KEYWORDS, {}),
        ("json_schema", {"type": "array", "items": {"type": "string", "format": "date"}}, {}),
        ("structural_tag", {"type": "triggered_tags", "triggers": ["<tool_call>{"], "tags": [LLAMA]}, {}),
    ],
    ids=json.dumps,
)
def test_a_request_waits_for_the_automaton_if_only_that_has_its_options(
    world: World, kind: str, source: object, options: dict[str, Any]
) -> None:
    assert world.waits(kind, source, **options)
    world.let_go()
    lasting = answer(world.grammars, "waiting")
    assert isinstance(lasting, GrammarError if source is ENDLESS else Automaton)


def test_every_request_learns_which_keywords_are_left_out(world: World) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "no-such"}}}
    assert world.waits("json_schema", schema, unenforced="allow")
    world.let_go()
    lasting = answer(world.grammars, "waiting")
    assert isinstance(lasting, Automaton) and lasting.left_out


@pytest.mark.parametrize(
    ("kind", "source"),
    [("json_schema", "{"), ("regex", "("), ("choice", []), ("structural_tag", {"type": "no such"})],
)
def test_a_grammar_that_neither_engine_can_read_is_refused_in_our_words(
    world: World, kind: str, source: object
) -> None:
    world.let_go()
    assert isinstance(compiled(world.grammars, kind, source), GrammarError)


def test_a_reproducible_request_waits_for_the_automaton_beside_one_that_began(world: World) -> None:
    assert isinstance(compiled(world.grammars, "json_schema", CITY), HostGrammar)
    submit(world.grammars, "seeded", "json_schema", json.dumps(CITY), reproducible=True)
    assert world.grammars.finished() == []
    world.let_go()
    assert isinstance(answer(world.grammars, "seeded"), Automaton)


def test_tools_that_are_too_large_are_left_free_for_reproducible_requests_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(job: Job) -> Result:
        if "triggers" in job.spec.text:
            raise TooLargeError("many states")
        return build(job)

    build = world._build
    monkeypatch.setattr(world, "_build", too_large)
    tag = {**CALL, "content": {**CONTENT, "function": "f", "otherwise": "object"}}
    tools = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [tag]}
    world.begun("structural_tag", tools)
    world.settle()
    lasting = compiled(world.grammars, "structural_tag", tools, reproducible=True)
    assert isinstance(lasting, Automaton) and lasting.left_out == (("parameters", "f#"),)


def test_llguidance_is_not_used_while_all_waiting_requests_are_reproducible(world: World) -> None:
    text = json.dumps(CITY)
    submit(world.grammars, "seeded", "json_schema", text, reproducible=True)
    assert world.grammars.finished() == []
    (work,) = world.grammars._works.values()
    assert work.attempt._future is None and world.grammars.due_in() is None
    submit(world.grammars, "begins", "json_schema", text)
    assert isinstance(answer(world.grammars, "begins"), HostGrammar)
    assert world.grammars.pending == 1


def test_llguidance_is_not_asked_if_the_automaton_is_ready_in_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.let_go()
    world.settle()
    monkeypatch.setattr(world.grammars, "_grace_s", 600.0)
    monkeypatch.setattr(world.grammars._host, "submit", None)
    submit(world.grammars, "ticket", "json_schema", json.dumps(CITY))
    assert 0 < (world.grammars.due_in() or 0) <= 600
    assert isinstance(answer(world.grammars, "ticket"), Automaton)
    assert world.grammars.due_in() is None


def test_a_grammar_that_the_automaton_compiler_refuses_is_served_to_all_if_it_was_to_one(
    world: World,
) -> None:
    pattern = r"x|a[^\s\S]"
    assert isinstance(compiled(world.grammars, "regex", pattern), HostGrammar)
    world.settle()
    assert isinstance(compiled(world.grammars, "regex", pattern), HostGrammar)


def test_llguidance_compiles_once_for_the_first_and_for_later_requests(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(job: Job) -> Result:
        raise TooLargeError("many states")

    first = world.begun("json_schema", CITY)
    monkeypatch.setattr(world, "_build", too_large)
    world.settle()
    assert compiled(world.grammars, "json_schema", CITY) is first


def test_a_fault_after_a_request_began_answers_no_later_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(job: Job) -> Result:
        raise OSError("no more processes")

    world.begun("json_schema", CITY)
    with monkeypatch.context() as patch:
        patch.setattr(world, "_build", broken)
        world.settle()
    world.hold()
    world.begun("json_schema", CITY)
    world.settle()
    assert isinstance(compiled(world.grammars, "json_schema", CITY), Automaton)


def test_a_cancelled_request_leaves_the_others_their_grammar(world: World) -> None:
    text = json.dumps(CITY)
    for name in ("gone", "stays", "seeded"):
        submit(world.grammars, name, "json_schema", text, reproducible=name == "seeded")
    world.grammars.cancel("gone")
    assert isinstance(answer(world.grammars, "stays"), HostGrammar)
    world.let_go()
    assert isinstance(answer(world.grammars, "seeded"), Automaton)
    assert world.grammars.pending == 0


def test_an_automaton_without_waiting_requests_is_begun_only_when_one_asks_again(world: World) -> None:
    for number in range(THREADS):
        submit(world.grammars, f"busy{number}", "regex", f"[0-9]{number}", reproducible=True)
    assert isinstance(compiled(world.grammars, "json_schema", CITY), HostGrammar)
    assert world.grammars.pending == THREADS
    assert len(world.grammars._works) == THREADS, "none is left of what was begun with"
    world.settle()
    world.hold()
    world.begun("json_schema", CITY)
    world.settle()
    assert isinstance(compiled(world.grammars, "json_schema", CITY), Automaton)


def test_nothing_runs_after_the_compiler_is_closed(world: World) -> None:
    for number in range(2 * THREADS):
        submit(world.grammars, f"{number}", "regex", f"[0-9]{number}", reproducible=number % 2 == 0)
    works = list(world.grammars._works.values())
    attempts = [work.attempt.begun() for work in works]
    world.grammars.finished()
    world.let_go()
    world.grammars.close()
    assert all(work.lasting.done() for work in works) and all(attempt.done() for attempt in attempts)
    assert not [thread for thread in threading.enumerate() if "grammars" in thread.name]


@pytest.mark.parametrize(
    ("schema", "endless"),
    [
        (True, False),
        (ENDLESS, True),
        (LIST, False),
        ({"type": "array", "items": {"$ref": "#"}}, False),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, True),
        ({"type": "object", "additionalProperties": {"$ref": "#"}}, False),
        ({"type": "object", "additionalProperties": {"$ref": "#"}, "required": ["a"]}, True),
        ({"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 1}, True),
        (
            {
                "properties": {"b": {"properties": {"a": True}}},
                "additionalProperties": {"$ref": "#"},
                "required": ["a"],
            },
            True,
        ),
        (
            {"properties": {"a": True}, "additionalProperties": {"$ref": "#"}, "required": ["a"]},
            False,
        ),
        ({"properties": {"a": True}, "patternProperties": {"^a": {"$ref": "#"}}, "required": ["a"]}, True),
        ({"patternProperties": {"enum": {"$ref": "#"}}, "required": ["enum"]}, True),
        ({"patternProperties": {"^a": {"$ref": "#"}}}, False),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, False),
        ({"properties": {"a": {"allOf": [{"$ref": "#"}]}}, "allOf": [{"required": ["a"]}]}, True),
        ({"anyOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": [{"$ref": "#"}]}}}, True),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}}, False),
        ({"$ref": "#/anyOf/0", "anyOf": [{"type": "null"}]}, False),
        ({"properties": {"$ref": {"type": "null"}}, "required": ["$ref"]}, False),
        ({"$ref": "#nowhere"}, True),
        ({"$ref": "#/nowhere"}, True),
        ({"$dynamicRef": "#"}, True),
    ],
    ids=json.dumps,
)
def test_a_value_within_itself_is_seen_where_it_can_not_be_left_out(schema: Any, endless: bool) -> None:
    assert may_be_endless(schema) == endless
