"""`complete_json`: replies are complete at any limit."""

from __future__ import annotations

from typing import Any

from arbora.grammars.regex.byte_automaton import compile_regex
from fake_model import EOS
from followed_rows import FollowedRows
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_bench import EvenTokens, SchedulerBench
from stack_automata import unmasked

NUMBERS = compile_regex(r"\((1*2)+(3(45)?)?\)")
"""of tokens below 64: the brackets are tokens 40 and 41, the digits 49 to 53"""


def bench_with_numbers(**options: int) -> SchedulerBench:
    pages: dict[str, Any] = {"num_pages": 64, "page_size": 4, "slots": 8, **options}
    rows = FollowedRows(NUMBERS.accepting)
    return SchedulerBench(
        **pages,
        compiler=EvenTokens(unmasked(NUMBERS)),
        automata=rows,
        jumps=True,
    )


def ask(bench: SchedulerBench, name: str, max_tokens: int, **sampling: Any) -> None:
    bench.submit(name, [1, 2, ord(name[0])], max_tokens, "automaton", complete_json=True, **sampling)


@settings(max_examples=120, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(3, 24), st.integers(0, 50)), min_size=1, max_size=5),
    pages=st.integers(10, 60),
)
def test_a_reply_fits_its_grammar_within_any_limit(requests: list[tuple[int, int]], pages: int) -> None:
    bench = bench_with_numbers(num_pages=pages)
    for name, (max_tokens, seed) in zip("abcde", requests, strict=False):
        ask(bench, name, max_tokens, seed=seed)
    bench.compiler.finish_all()
    bench.run()
    for name, (max_tokens, _) in zip("abcde", requests, strict=False):
        tokens = [token for token in bench.tokens(name) if token != EOS]
        assert NUMBERS.accepts(bytes(tokens))
        assert len(bench.tokens(name)) <= max_tokens
        assert bench.finish(name) == ("stop" if EOS in bench.tokens(name) else "length")
    assert bench.scheduler.idle
    assert bench.scheduler.stats().pages_used == 0


def test_a_reply_that_would_end_in_time_is_left_alone() -> None:
    replies = []
    for complete in (False, True):
        bench = bench_with_numbers()
        bench.submit("a", [1, 2, 3], 100, "automaton", complete_json=complete, seed=3)
        bench.compiler.finish_all()
        bench.run()
        assert bench.finish("a") == "stop"
        replies.append(bench.tokens("a"))
    assert replies[0] == replies[1]


def test_the_next_turn_reads_nothing_of_a_token_that_was_not_kept() -> None:
    bench = bench_with_numbers(page_size=1, num_pages=300)
    for seed in range(12):
        bench.submit(f"a{seed}", [1, 2, 3], 6, "automaton", complete_json=True, seed=seed)
    bench.compiler.finish_all()
    bench.run()
    for seed in range(12):
        prompt = [1, 2, 3, *bench.tokens(f"a{seed}"), 7]
        replies = []
        for each in (bench, bench_with_numbers(num_pages=300)):
            each.submit(f"b{seed}", prompt, 8, "automaton", seed=seed)
            each.compiler.finish_all()
            each.run()
            replies.append(each.tokens(f"b{seed}"))
        assert replies[0] == replies[1]
    assert max(bench.cached(f"b{seed}") or 0 for seed in range(12)) > 5


def test_a_limit_below_the_shortest_reply_is_refused_with_the_lowest_limit() -> None:
    bench = bench_with_numbers()
    ask(bench, "a", 2)
    bench.compiler.finish_all()
    bench.update()
    assert bench.refused["a"].status == 400
    assert bench.refused["a"].param == "max_tokens"
    assert "may have 2 tokens" in bench.refused["a"].message
    assert "has 3 tokens" in bench.refused["a"].message
    assert bench.scheduler.idle


def test_a_grammar_without_an_automaton_is_refused() -> None:
    bench = bench_with_numbers()
    bench.submit("a", [1, 2], 9, "even", complete_json=True)
    bench.compiler.finish_all()
    bench.update()
    assert bench.refused["a"].param == "complete_json"
    assert bench.scheduler.idle
