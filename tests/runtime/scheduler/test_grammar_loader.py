"""The automata that the model process loads and drops."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from arbora.grammars import Automaton, BusyError, CompilerError, GrammarError
from arbora.runtime.automaton_format import ACTION_COLUMNS
from arbora.runtime.automaton_format import unpacked as unpacked_tables
from arbora.runtime.grammar_spec import GrammarKind
from arbora.runtime.messages import DropGrammar, GrammarSpec, LoadGrammar
from arbora.runtime.scheduler import grammar_loader
from arbora.runtime.scheduler.constraint import AutomatonConstraint, Constraint
from arbora.runtime.scheduler.grammar_loader import GrammarLoader
from grammar_world import compiler
from msgspec import structs
from stack_automata import automaton, tables


class Ready:
    """A compiler that has every automaton at once: named by its text, with masks of so many bytes."""

    def __init__(self, mask_bytes: int = 4) -> None:
        self.mask_bytes = mask_bytes
        self.done: list[tuple[str, Automaton]] = []

    def submit(self, ticket: str, spec: GrammarSpec, **_: object) -> None:
        masks = np.broadcast_to(np.int32(-1), (1, self.mask_bytes // 4))
        made = tables(np.zeros(256, np.uint8), np.zeros((1, 1), np.int32), [0], masks)
        self.done.append((ticket, automaton(spec.text, made)))

    def spelled(self, tokens: np.ndarray) -> bytes:
        return b""

    def finished(self) -> list[tuple[str, Automaton]]:
        done, self.done = self.done, []
        return done


def ask(loader: GrammarLoader, text: str) -> Constraint:
    loader.submit("request", GrammarSpec("regex", text, "regex"))
    ((_, constraint),) = loader.take_finished()
    assert not isinstance(constraint, Exception)
    return constraint


def loaded(loader: GrammarLoader, text: str) -> Constraint:
    constraint = ask(loader, text)
    assert loader.load(constraint)
    return constraint


def dropped(loader: GrammarLoader) -> list[int]:
    return [load.grammar for load in loader.take_loads() if isinstance(load, DropGrammar)]


@pytest.fixture
def four_fit(monkeypatch: pytest.MonkeyPatch) -> GrammarLoader:
    """A loader whose memory holds four automata."""
    monkeypatch.setattr(grammar_loader, "DEVICE_BYTES", (1 << 20) + (1 << 16))
    return GrammarLoader(Ready(1 << 18))  # type: ignore[arg-type]


def test_no_automaton_is_loaded_for_waiting_requests() -> None:
    loader = GrammarLoader(Ready())  # type: ignore[arg-type]
    ask(loader, "a")
    assert loader.take_loads() == []


def test_an_automaton_is_loaded_once_for_all_its_users() -> None:
    loader = GrammarLoader(Ready())  # type: ignore[arg-type]
    for _ in range(3):
        loaded(loader, "a")
    assert [type(load) for load in loader.take_loads()] == [LoadGrammar]


def test_the_tables_of_the_stack_are_loaded_with_the_automaton() -> None:
    compiler = Ready()
    loader = GrammarLoader(compiler)  # type: ignore[arg-type]
    compiler.submit("request", GrammarSpec("regex", "a"))
    ((ticket, plain),) = compiler.finished()
    numbers = np.arange(ACTION_COLUMNS, dtype=np.int32)
    stacked = structs.replace(plain.tables, actions=numbers[None], returns=numbers[:1])
    compiler.done = [(ticket, replace(plain, tables=stacked))]
    ((_, constraint),) = loader.take_finished()
    assert not isinstance(constraint, Exception)
    assert loader.load(constraint)
    (load,) = loader.take_loads()
    assert isinstance(load, LoadGrammar)
    sent = unpacked_tables(load.tables)
    assert (sent.actions.tolist(), sent.returns.tolist()) == ([numbers.tolist()], [0])


def test_the_least_recently_used_automata_are_dropped_when_memory_runs_short(four_fit: GrammarLoader) -> None:
    used = loaded(four_fit, "used")
    for text in "abc":
        four_fit.unload(loaded(four_fit, text))
    assert dropped(four_fit) == []
    loaded(four_fit, "a")
    loaded(four_fit, "d")
    assert dropped(four_fit) == [3]
    assert used.grammar == 1  # type: ignore[attr-defined]


def test_an_automaton_in_use_is_never_dropped(four_fit: GrammarLoader) -> None:
    first, second = loaded(four_fit, "a"), loaded(four_fit, "a")
    for text in "bcd":
        loaded(four_fit, text)
    four_fit.unload(first)
    waiting = ask(four_fit, "e")
    assert not four_fit.fits(waiting)
    assert not four_fit.load(waiting)
    assert dropped(four_fit) == []
    four_fit.unload(second)
    assert four_fit.fits(waiting)
    assert dropped(four_fit) == []
    assert four_fit.load(waiting)
    assert dropped(four_fit) == [1]


def test_an_automaton_that_can_never_fit_is_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_loader, "DEVICE_BYTES", 100_000)
    loader = GrammarLoader(Ready(200_000))  # type: ignore[arg-type]
    loader.submit("request", GrammarSpec("regex", "a", "regex"))
    ((_, refused),) = loader.take_finished()
    assert isinstance(refused, GrammarError)
    assert "100,000" in str(refused) and "200," in str(refused)


@pytest.mark.parametrize("kind", ["json_schema", "json_object"])
def test_a_schema_is_sent_to_the_device_once_and_no_mask_after_it(kind: GrammarKind) -> None:
    grammars = compiler()
    loader = GrammarLoader(grammars)
    spec = GrammarSpec(kind, '{"type":"array","items":{"type":"object"}}', "response_format")
    loader.submit("request", spec)
    ((_, constraint),) = finished(loader)
    assert isinstance(constraint, AutomatonConstraint)
    assert not constraint.host_masked
    assert loader.load(constraint)
    (load,) = loader.take_loads()
    assert isinstance(load, LoadGrammar)
    tables = unpacked_tables(load.tables)
    assert tables.actions.size and tables.list_tokens.size
    grammars.close()


def finished(
    loader: GrammarLoader,
) -> list[tuple[str, Constraint | GrammarError | CompilerError | BusyError]]:
    while not (made := list(loader.take_finished())):
        time.sleep(0.001)
    return made


@pytest.mark.parametrize(("isolated", "scopes"), [(False, ["", ""]), (True, ["one", "two"])])
def test_isolated_tenants_share_no_compiled_grammar(isolated: bool, scopes: list[str]) -> None:
    class Recorded(Ready):
        def submit(self, ticket: str, spec: GrammarSpec, **options: object) -> None:
            seen.append((options["tenant"], spec.scope))

    seen: list[tuple[object, object]] = []
    loader = GrammarLoader(Recorded(), isolated=isolated)  # type: ignore[arg-type]
    for tenant in ("one", "two"):
        loader.submit("request", GrammarSpec("regex", "a", "regex"), tenant=tenant)
    assert seen == list(zip(("one", "two"), scopes, strict=True))
