"""Measures what explaining cache misses costs the tokenizer process for each request, in microseconds.

A conversation of the built-in model grows to several lengths. `outline` are the digests of its parts;
`nearest` is the search for the most similar earlier prompt, among those of 1,000 other conversations too;
`remember` stores the prompt and its reply; `count` finds the causes of a turn that continues the
conversation, `changed` those of a turn whose system prompt has another time. `render` and `tokenize` are what
the server does for the same turn anyway, with the memo of earlier turns. `share` is the time of `outline`,
`nearest`, `remember` and `count` ÷ that of all columns but `changed`. A figure is the best of many runs.
Run: PYTHONSAFEPATH=1 python bench/explain.py
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from arbora.frontend.core.cache_misses.explanation import PromptComparison, count_by_cause
from arbora.frontend.core.cache_misses.outline import outline_of
from arbora.frontend.core.cache_misses.recent_prompts import Place, RecentPrompts
from arbora.frontend.core.text.chat_template import ChatTemplate
from arbora.frontend.core.text.prompt_memo import PromptMemo
from arbora.frontend.core.text.tokenizer import Tokenizer

BUILTIN = Path(__file__).parents[1] / "runtime/model/builtin"
PLACE = Place("", "")
OTHERS = 1000  # conversations of a system prompt and a question
WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "looked",
    "for",
    "some",
    "other",
    "word",
    "in",
    "each",
    "line",
]


def best_us(work: Callable[[], object], runs: int) -> float:
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter_ns()
        work()
        best = min(best, (time.perf_counter_ns() - start) / 1000)
    return best


def conversation(turns: int, clock: str) -> list[dict[str, Any]]:
    generator = random.Random(turns)
    messages = [{"role": "system", "content": f"Current time: {clock}\nYou are a helpful assistant."}]
    for turn in range(2 * turns + 1):
        text = " ".join(generator.choices(WORDS, k=150))
        messages.append({"role": "assistant" if turn % 2 else "user", "content": text})
    return messages


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--turns", type=int, nargs="*", default=[1, 5, 50, 300])
    parser.add_argument("--runs", type=int, default=30)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.load(BUILTIN)
    template = ChatTemplate.load(BUILTIN, tokenizer)
    assert template is not None
    print("| tokens | outline | nearest | remember | count | share | changed | render | tokenize |")
    print("|---|---|---|---|---|---|---|---|---|")
    for turns in arguments.turns:
        print(row(turns, tokenizer, template, arguments.runs), flush=True)


def row(turns: int, tokenizer: Tokenizer, template: ChatTemplate, runs: int) -> str:
    memo = PromptMemo(tokenizer)

    def encode(messages: Sequence[dict[str, Any]]) -> bytes:
        return memo.encode("", template.render(list(messages)))

    def decode(tokens: bytes) -> str:
        return tokenizer.decode(tokens, skip_special_tokens=False)

    messages, changed = conversation(turns, "10:01"), conversation(turns, "10:02")
    recent = filled(encode)
    earlier = encode(messages[:-2])
    recent.add(PLACE, earlier, outline_of(messages[:-2], None, ()).parts)
    tokens, outline = encode(messages), outline_of(messages, None, ())
    near = recent.nearest(PLACE, tokens, outline.parts)
    going_on = PromptComparison(tokens=tokens, outline=outline, near=near)
    other, other_outline = encode(changed), outline_of(changed, None, ())
    near = recent.nearest(PLACE, other, other_outline.parts)
    parted = PromptComparison(tokens=other, outline=other_outline, near=near)
    assert "volatile" in count_by_cause(parted, 0, decode)[0]
    text = template.render(messages)

    def look() -> None:
        recent.nearest(PLACE, tokens, outline.parts)
        recent.elsewhere(PLACE, tokens)

    def remember() -> None:
        recent.extend(recent.add(PLACE, tokens, outline.parts), bytes(4 * 200))

    def encode_turn() -> None:
        fresh = PromptMemo(tokenizer)
        fresh.encode("", template.render(messages[:-2]))
        begun = time.perf_counter_ns()
        fresh.encode("", text)
        turn_us.append((time.perf_counter_ns() - begun) / 1000)

    turn_us: list[float] = []
    for _ in range(5):
        encode_turn()
    matched = len(earlier) // 4
    own = [
        best_us(lambda: outline_of(messages, None, ()), runs),
        best_us(look, runs),
        best_us(lambda: count_by_cause(going_on, matched, decode), runs),
        best_us(remember, runs),
    ]
    lost = best_us(lambda: count_by_cause(parted, 0, decode), runs)
    render = best_us(lambda: template.render(messages), runs)
    share = sum(own) / (sum(own) + render + min(turn_us))
    figures = [*(f"{each:.1f}" for each in (own[0], own[1], own[3], own[2])), f"{share:.1%}"]
    figures += [f"{each:.0f}" for each in (lost, render, min(turn_us))]
    return f"| {len(tokens) // 4} | {' | '.join(figures)} |"


def filled(encode: Callable[[Sequence[dict[str, Any]]], bytes]) -> RecentPrompts:
    recent = RecentPrompts()
    for number in range(OTHERS):
        messages = [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": f"PromptComparison {number}?"},
        ]
        recent.add(PLACE, encode(messages), outline_of(messages, None, ()).parts)
    return recent


if __name__ == "__main__":
    main()
