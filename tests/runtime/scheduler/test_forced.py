"""Jump-forward: forced tokens are appended without a step for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
from arbora.grammars import Automaton, ForcedText
from arbora.grammars.machine.stack_automaton import StackAutomaton
from arbora.runtime.automaton_format import DEAD
from arbora.runtime.messages import Abort, StepPlan, StepResult
from fake_model import EOS, VOCAB, long_reply_prompt, next_token, pack, unpack
from followed_rows import FollowedRows
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scheduler_bench import EvenTokens, SchedulerBench
from stack_automata import action_rows, unmasked

Edges = dict[int, int]
"""the next state by token"""


def grammar(states: list[Edges], accepting: set[int]) -> Automaton:
    transitions = np.full((len(states), 256), DEAD, np.int32)
    for state, edges in enumerate(states):
        for token, target in edges.items():
            transitions[state, token] = target
    return unmasked(
        StackAutomaton(
            start=0,
            class_of_byte=np.arange(256).astype(np.uint8),
            transitions=transitions,
            actions=action_rows(),
            returns=np.zeros(0, np.int32),
            accepting=np.array([state in accepting for state in range(len(states))]),
            body_of_state=np.zeros(len(states), np.int8),
            like_state=np.arange(len(states), dtype=np.int32),
        )
    )


def chain(*tokens: int) -> Automaton:
    """A choice between 1 and 2, these tokens, such a choice again, and so on."""
    states: list[Edges] = [{1: 1, 2: 1}]
    states += [{token: number + 2} for number, token in enumerate(tokens[:-1])]
    return grammar([*states, {tokens[-1]: 0}], set())


def bench_with(automaton: Automaton, **options: Any) -> SchedulerBench:
    rows = FollowedRows(automaton.machine.accepting)
    pages: dict[str, Any] = {"num_pages": 64, "page_size": 4, "slots": 8, **options}
    return SchedulerBench(**pages, compiler=EvenTokens(automaton), automata=rows, jumps=True)


def ask(bench: SchedulerBench, name: str, prompt: list[int], max_tokens: int, **sampling: Any) -> list[int]:
    """The reply to a single request."""
    bench.submit(name, prompt, max_tokens, "automaton", **sampling)
    bench.compiler.finish_all()
    bench.run()
    return bench.tokens(name)


@dataclass
class Alone:
    """A request in plain Python: two or more forced tokens, or those up to the end, are appended at once."""

    automaton: Automaton
    seed: int = 0

    def reply(self, prompt: list[int], max_tokens: int) -> list[int]:
        state, tokens = 0, list(prompt)
        while len(tokens) < len(prompt) + max_tokens:
            run = self._forced(state)[: len(prompt) + max_tokens - len(tokens)]
            if len(run) < 2 and EOS not in run:
                allowed = self._allowed(state)
                run = [allowed[next_token(tokens, self.seed) % len(allowed)]]
            for token in run:
                tokens.append(token)
                if token == EOS:
                    return tokens[len(prompt) :]
                state = int(self.automaton.machine.transitions[state, token])
        return tokens[len(prompt) :]

    def _forced(self, state: int) -> list[int]:
        run: list[int] = []
        while len(self._allowed(state)) == 1 and EOS not in run and len(run) < 256:
            run += self._allowed(state)
            if run[-1] != EOS:
                state = int(self.automaton.machine.transitions[state, run[-1]])
        return run

    def _allowed(self, state: int) -> list[int]:
        machine = self.automaton.machine
        allowed = [token for token in range(1, VOCAB) if machine.transitions[state, token] != DEAD]
        return allowed + ([EOS] if machine.accepting[state] else [])


def test_a_forced_run_is_computed_in_one_step_with_the_token_after_it() -> None:
    bench = bench_with(chain(5, 6, 7, 8))
    reply = ask(bench, "a", [1, 2, 3], 25)
    assert [token for token in reply if token > 2] == [5, 6, 7, 8] * 5
    assert bench.scheduler.stats().forced_tokens == 20
    assert bench.scheduler.stats().steps <= 11, "one for each token that is sampled and one beside it"


@pytest.mark.parametrize("max_drafts", [0, 1, 15])
def test_drafts_may_follow_a_forced_run_but_no_prompt(
    max_drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = bench_with(chain(5, 6, 7, 8), max_sampled=4)
    bench.submit("a", [1, 2, 3], 29, "automaton", max_drafts=max_drafts)
    bench.compiler.finish_all()
    run_step, samples = bench.model.run_step, list[int]()

    def note_chunks() -> StepResult:
        samples.extend(row.samples for row in bench.model.plans[0].rows if row.tokens)
        return run_step()

    monkeypatch.setattr(bench.model, "run_step", note_chunks)
    bench.run()
    prompt, *forced = samples
    assert prompt == 1
    assert forced[:4] == [min(4, 1 + max_drafts)] * 4
    assert len(bench.tokens("a")) == 29


@pytest.mark.parametrize("count", [1, 2, 4])
def test_forced_tokens_replace_all_tokens_that_a_row_is_sampling(count: int) -> None:
    automaton = chain(5, 6, 7, 8)
    bench = bench_with(automaton, max_sampled=4, count=lambda most: min(most, count))
    assert ask(bench, "a", [1, 2, 3], 25) == Alone(automaton).reply([1, 2, 3], 25)


@pytest.mark.parametrize("steps", range(2, 9))
def test_a_request_that_ends_before_its_forced_tokens_are_sent_leaves_those_before(steps: int) -> None:
    bench = bench_with(chain(5, 6, 7, 8), max_sampled=4, count=lambda most: min(most, 2))
    bench.submit("a", [1, 2, 3], 40, "automaton")
    bench.compiler.finish_all()
    bench.run(steps)
    bench.handle(Abort("a"))
    bench.run()
    ask(bench, "later", [5, 6, 7], max_tokens=1)
    [left] = bench.model.ended
    assert len(left) > 3
    assert left == [1, 2, 3, *bench.tokens("a")][: len(left)]


def test_a_stream_keeps_chunks_small_also_while_forced_tokens_come_next() -> None:
    bench = bench_with(chain(5, 6, 7, 8), num_pages=400)
    for _ in range(60):
        bench.budget.observe(0, 2.0)
        bench.budget.observe(64, 2.0 + 64 * 0.1)
    bench.submit("stream", [1, 2, 3], 80, "automaton", kind="structural_tag")
    bench.submit("whole", [3, 2, 1], 80, "automaton", is_streamed=False)
    bench.compiler.finish_all()
    bench.run(steps=6)
    bench.submit("long", long_reply_prompt(900, 4), 4, "automaton", is_streamed=False)
    bench.compiler.finish_all()
    chunks = []
    for _ in range(12):
        bench.run(steps=1)
        chunks += [len(row.tokens) // 4 for row in bench.model.plans[-1].rows if row.tokens]
    assert 4 in chunks, "the stream had forced tokens"
    assert 16 < max(chunks) <= 60, "the step's 8 ms less the 2 ms without prompts, at 0.1 ms a token"
    bench.run()
    assert bench.tokens("long")


class Chained:
    """Stepped by the host: 2 or 4, then 6, 8 and 10, and so on."""

    def __init__(self) -> None:
        self._place = 0

    def is_ready(self, within_s: float) -> bool:
        return True

    def begin(self, token: int) -> None:
        """`consume` returns the answer."""

    def append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.consume(token)

    def consume(self, token: int) -> str | None:
        if token not in self._allowed():
            return f"token {token} at place {self._place}"
        self._place += 1
        return None

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        allowed = np.isin(np.arange(VOCAB), self._allowed())
        mask[:] = np.packbits(allowed, bitorder="little").view(np.int32)

    def forced_text(self) -> ForcedText:
        run = (6, 8, 10)[self._place % 4 - 1 :] if self._place % 4 else ()
        return ForcedText(bytes(run), b"", False)

    def _allowed(self) -> tuple[int, ...]:
        return ((2, 4), (6,), (8,), (10,))[self._place % 4]


class ChainedCompiler(EvenTokens):
    def matcher(self) -> Any:
        return Chained()


@pytest.mark.parametrize("max_tokens", [3, 8, 21])
def test_grammars_with_their_own_process_force_text_too(max_tokens: int) -> None:
    replies = {}
    for jumps in (False, True):
        bench = SchedulerBench(compiler=ChainedCompiler(), jumps=jumps)
        for name in "ab":
            bench.submit(name, [1, 2, ord(name) % 50], max_tokens, "even")
        bench.compiler.finish_all()
        bench.run()
        replies[jumps] = [bench.tokens(name) for name in "ab"]
        assert (bench.scheduler.stats().forced_tokens > 0) == jumps
        assert [bench.finish(name) for name in "ab"] == ["length", "length"]
    assert replies[True] == replies[False]


def test_a_run_of_one_token_is_sampled() -> None:
    bench = bench_with(chain(5))
    assert len(ask(bench, "a", [1, 2], 10)) == 10
    assert bench.scheduler.stats().forced_tokens == 0


def test_tokens_that_are_forced_from_the_start_are_computed_with_the_prompt() -> None:
    bench = bench_with(grammar([{5: 1}, {6: 2}, {7: 3}, {1: 3, 2: 3}], {3}))
    bench.submit("a", [1, 2, 3], 8, "automaton")
    bench.compiler.finish_all()
    bench.update()
    bench.plan()
    [plan] = [plan for plan in bench.model.plans if isinstance(plan, StepPlan)]
    assert [unpack(row.tokens) for row in plan.rows] == [[1, 2, 3, 5, 6, 7]]
    bench.run()
    assert bench.tokens("a")[:3] == [5, 6, 7]
    assert bench.cached("a") == 0


def test_a_prompt_with_forced_tokens_is_copied_once_while_it_waits() -> None:
    bench = bench_with(grammar([{5: 1}, {6: 2}, {7: 3}, {1: 3, 2: 3}], set()), slots=1)
    bench.submit("first", [1, 2, 3], 40, "automaton")
    bench.submit("waits", [4, 5, 6], 8, "automaton")
    bench.compiler.finish_all()
    bench.run(steps=2)
    request = bench.scheduler._requests.find("waits")
    assert request is not None and request.held is None and unpack(request.slice(3, 6)) == [5, 6, 7]
    tokens = request.tokens
    bench.run(steps=2)
    assert request.held is None and request.tokens is tokens and isinstance(tokens, bytes)


def test_a_reply_ends_without_a_step_for_its_end() -> None:
    bench = bench_with(grammar([{5: 1, 6: 1}, {}], {1}))
    bench.submit("a", [1, 2, 3], 8, "automaton")
    bench.compiler.finish_all()
    bench.update()
    bench.plan()
    bench.step()
    assert bench.tokens("a")[1:] == [EOS]
    assert bench.finish("a") == "stop"
    assert bench.outputs["a"][-1].stop_token == EOS


def test_a_grammar_of_one_text_needs_one_step_besides_the_one_in_flight() -> None:
    bench = bench_with(grammar([{5: 1}, {6: 2}, {}], {2}))
    assert ask(bench, "a", [1, 2], 8) == [5, 6, EOS]
    assert bench.finish("a") == "stop"
    assert bench.scheduler.stats().steps == 2
    assert bench.scheduler.idle


@pytest.mark.parametrize("page_size", [1, 4])
def test_the_next_turn_finds_tokens_forced_at_the_end_of_a_reply(page_size: int) -> None:
    automaton = grammar([{5: 1, 6: 1}, {7: 2}, {8: 3}, {9: 4}, {}], {4})
    bench = bench_with(automaton, num_pages=128, page_size=page_size)
    bench.submit("a", [1, 2, 3], 9, "automaton")
    bench.compiler.finish_all()
    bench.run(1)
    reply = bench.tokens("a")
    assert bench.finish("a") == "stop", "the reply does not wait for them"
    bench.run()
    assert reply[1:] == [7, 8, 9, EOS]
    ask(bench, "b", [1, 2, 3, *reply, 9], 2)
    assert bench.cached("b") == 7


def test_a_prompt_does_not_wait_for_tokens_forced_at_the_end_of_another_reply() -> None:
    bench = bench_with(grammar([{5: 1, 6: 1}, {7: 2}, {8: 3}, {9: 4}, {}], {4}))
    bench.submit("a", [1, 2, 3], 9, "automaton")
    bench.compiler.finish_all()
    bench.run(1)
    bench.step()
    bench.plan()
    [leaving] = bench.model.plans
    assert [unpack(row.tokens) for row in leaving.rows] == [[7, 8, 9]]
    bench.submit("b", [4, 5, 6], 2)
    assert bench.plan()
    assert [unpack(row.tokens) for row in bench.model.plans[-1].rows] == [[4, 5, 6]]


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_forced_tokens_count_towards_the_length(max_tokens: int) -> None:
    bench = bench_with(grammar([{5: 1}, {6: 2}, {7: 3}, {8: 3, 9: 3}], set()))
    assert len(ask(bench, "a", [1, 2], max_tokens)) == max_tokens
    assert bench.finish("a") == "length"


@pytest.mark.parametrize("sampling", [{"stop_token_ids": (7,)}, {"logit_bias": {7: -100.0}}])
def test_forcing_respects_limits_stop_ids_and_biases(sampling: dict[str, Any]) -> None:
    bench = bench_with(chain(5, 6, 7, 8))
    ask(bench, "a", [1, 2], 9, **sampling)
    assert bench.scheduler.stats().forced_tokens % 2 == 0
    assert bench.scheduler.stats().forced_tokens <= 4


def test_the_end_is_not_forced_before_min_tokens() -> None:
    bench = bench_with(grammar([{5: 1, 6: 1}, {}], {1}))
    bench.submit("a", [1, 2, 3], 8, "automaton", min_tokens=4)
    bench.compiler.finish_all()
    bench.update()
    bench.plan()
    bench.step()
    assert bench.finish("a") is None


@pytest.mark.parametrize("sampling", [{"logprobs": 0}, {"prompt_logprobs": 0}])
def test_nothing_is_forced_where_every_token_needs_its_log_probability(sampling: dict[str, Any]) -> None:
    bench = bench_with(chain(5, 6, 7))
    bench.submit("a", [1, 2], 9, "automaton", **sampling)
    bench.compiler.finish_all()
    bench.run(4)
    assert bench.scheduler.stats().forced_tokens == 0


def test_forced_tokens_are_in_the_tree_when_the_reply_has_ended() -> None:
    bench = bench_with(chain(5, 6, 7))
    reply = ask(bench, "a", [1, 2, 3], 17)
    ask(bench, "b", [1, 2, 3, *reply, 9], 4)
    assert bench.cached("b") == 19


def test_after_forced_tokens_the_slot_is_set_up_with_penalties_and_position() -> None:
    bench = bench_with(chain(5, 6))
    bench.submit("a", [1, 2], 9, "automaton", presence_penalty=1.0)
    bench.compiler.finish_all()
    bench.update()
    bench.plan()
    while not (bench.model.plans and bench.model.plans[-1].setups):
        bench.step()
        bench.plan()
    bench.step()
    bench.plan()
    [setup] = [setup for plan in bench.model.plans for setup in plan.setups]
    first = bench.tokens("a")[0]
    assert unpack(setup.output) == [first, 5, 6]
    assert (setup.position, setup.state, setup.prompt) == (3, 0, pack([1, 2]))


@st.composite
def automata(draw: st.DrawFn) -> Automaton:
    """Automata that mostly have no choice, and that may or may not reach an end."""
    count = draw(st.integers(2, 7))
    targets = st.integers(0, count - 1)
    states, accepting = list[Edges](), set[int]()
    for state in range(count):
        edges = draw(
            st.dictionaries(st.integers(1, VOCAB - 1), targets, max_size=draw(st.sampled_from([1, 1, 1, 3])))
        )
        if not edges or draw(st.integers(0, 9)) == 0:
            accepting.add(state)
        states.append(edges)
    return grammar(states, accepting)


@settings(max_examples=150, deadline=None)
@given(
    automaton=automata(),
    requests=st.lists(
        st.tuples(st.integers(1, 30), st.integers(0, 40), st.integers(0, 3)), min_size=1, max_size=6
    ),
    pages=st.integers(24, 80),
    page_size=st.sampled_from([1, 4]),
    dropped=st.integers(0, 6),
    drop_after=st.integers(0, 12),
    max_sampled=st.sampled_from([1, 4]),
)
def test_replies_do_not_depend_on_other_requests_or_retraction(
    automaton: Automaton,
    requests: list[tuple[int, int, int]],
    pages: int,
    page_size: int,
    dropped: int,
    drop_after: int,
    max_sampled: int,
) -> None:
    sampled = {"max_sampled": max_sampled, "count": partial(Random(pages).randint, 1)}
    bench = bench_with(automaton, num_pages=pages * (4 // page_size), page_size=page_size, slots=4, **sampled)
    prompts = [[1 + (at * salt) % 50 for at in range(length)] for length, _, salt in requests]
    for name, (_, max_tokens, seed) in enumerate(requests):
        bench.submit(f"r{name}", prompts[name], max_tokens, "automaton", seed=seed)
    bench.compiler.finish_all()
    bench.run(drop_after)
    bench.handle(Abort(f"r{dropped}"))
    bench.run()
    for name, (_, max_tokens, seed) in enumerate(requests):
        if name != dropped and f"r{name}" not in bench.refused:
            assert bench.tokens(f"r{name}") == Alone(automaton, seed).reply(prompts[name], max_tokens)
    assert bench.scheduler.idle
    assert bench.scheduler.stats().pages_used == 0


@pytest.mark.parametrize("priorities", [(1, 0), (0, 1), (0, 0)])
@pytest.mark.parametrize("keys", [0, 2])
def test_requests_of_any_priority_may_wait_for_tokens_that_another_ones_grammar_forces(
    priorities: tuple[int, int], keys: int
) -> None:
    automaton, prompt = chain(*[5] * 40), [1, 2, 3]
    reply = ask(bench_with(automaton, num_pages=200), "alone", prompt, 60)
    bench = bench_with(automaton, num_pages=200, keys=keys)
    bench.submit("forced", prompt, 60, "automaton", priority=priorities[0], tenant="a")
    bench.compiler.finish_all()
    bench.update()
    bench.plan()
    bench.step()  # samples the first token, after which the others are forced
    bench.submit("waits", [*prompt, *reply[:41], 9], 2, "automaton", priority=priorities[1], tenant="b")
    bench.compiler.finish_all()
    bench.run()
    assert bench.tokens("forced") == reply
    assert bench.finish("waits") == "length"
    assert bench.cached("waits") == 44
