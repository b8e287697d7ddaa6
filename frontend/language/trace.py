"""The trace of a program: for each call, its times and its computed and cached tokens."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping

import msgspec

_STYLE = (
    "body{font:14px system-ui;margin:2em}table{border-collapse:collapse}"
    "td,th{padding:.2em .7em;text-align:left;border-bottom:1px solid #ccc;vertical-align:top}"
    "td.n{text-align:right}.bar{background:#2a7;height:.8em}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}}"
)
_HEADS = ("call", "statement", "prompt", "cached", "reply", "seconds", "time", "finish or scores", "text")


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One call to the model. `branch` is the path of forks from the program's first state, such as (0, 2).
    Times are in seconds since the program began; token counts are of the prompt, of its cached part, and of
    the reply. A `gen` has a `finish_reason`, a `select` the mean log-probability of each choice."""

    statement: str
    kind: str
    name: str | None
    branch: tuple[int, ...]
    text: str
    begun: float
    ended: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int = 0
    finish_reason: str = ""
    scores: Mapping[str, float] = {}


class Trace:
    def __init__(self, calls: Iterable[Call]) -> None:
        self.calls = sorted(calls, key=lambda call: (call.begun, call.branch))

    def __add__(self, other: Trace) -> Trace:
        """The calls of two programs."""
        return Trace([*self.calls, *other.calls])

    @property
    def prompt_tokens(self) -> int:
        return sum(call.prompt_tokens for call in self.calls)

    @property
    def cached_tokens(self) -> int:
        return sum(call.cached_tokens for call in self.calls)

    @property
    def cached_share(self) -> float:
        """The part of all prompt tokens that was found in the cache, from 0 to 1."""
        return self.cached_tokens / max(1, self.prompt_tokens)

    def __str__(self) -> str:
        lines = [
            f"{call.begun:7.2f}–{call.ended:.2f} s  {_write_branch(call)}{call.kind} {call.name or ''}: "
            f"{call.prompt_tokens} prompt tokens, {call.cached_tokens} cached, {_end(call)}  "
            f"{_shorten(call.text)}"
            for call in self.calls
        ]
        return "\n".join([*lines, self.summary()])

    def summary(self) -> str:
        return (
            f"{len(self.calls)} calls, {self.prompt_tokens} prompt tokens, {self.cached_share:.0%} of them "
            f"cached, {sum(call.completion_tokens for call in self.calls)} tokens in replies"
        )

    def html(self) -> str:
        """A page with a line and a bar of time for each call."""
        end = max((call.ended for call in self.calls), default=0.0) or 1.0
        rows = "".join(_write_row(call, end) for call in self.calls)
        heads = "".join(f"<th>{head}</th>" for head in _HEADS)
        return (
            f'<!doctype html><meta charset="utf-8"><title>Trace</title><style>{_STYLE}</style>'
            f"<p>{html.escape(self.summary())}</p><table><tr>{heads}</tr>{rows}</table>"
        )


def _write_row(call: Call, end: float) -> str:
    numbers = (
        str(call.prompt_tokens),
        str(call.cached_tokens),
        str(call.completion_tokens),
        f"{call.ended - call.begun:.2f}",
    )
    cells = "".join(f'<td class="n">{number}</td>' for number in numbers)
    left, width = (100 * part / end for part in (call.begun, call.ended - call.begun))
    bar = f'<div class="bar" style="margin-left:{left:.1f}%;width:max(2px,{width:.1f}%)"></div>'
    name = f"{_write_branch(call)}{call.kind} {call.name or ''}"
    return (
        f"<tr><td>{html.escape(name)}</td><td><code>{html.escape(call.statement)}</code></td>{cells}"
        f'<td style="width:20em">{bar}</td><td>{html.escape(_write_scores(call) or call.finish_reason)}</td>'
        f"<td>{html.escape(_shorten(call.text, 200))}</td></tr>"
    )


def _end(call: Call) -> str:
    if call.scores:
        return f"scores {_shorten(_write_scores(call), 80)}"
    return f"{call.completion_tokens} in the reply ({call.finish_reason})"


def _write_scores(call: Call) -> str:
    """The scores of a `select` as text, the likeliest choice first."""
    ranked = sorted(call.scores.items(), key=lambda scored: -scored[1])
    return ", ".join(f"{choice.strip()} {score:.2f}" for choice, score in ranked)


def _write_branch(call: Call) -> str:
    return f"[{'.'.join(map(str, call.branch))}] " if call.branch else ""


def _shorten(text: str, max_length: int = 40) -> str:
    line = " ".join(text.split())
    return line if len(line) <= max_length else line[: max_length - 1] + "…"
