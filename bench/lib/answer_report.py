"""Replies to the cases of `answers.py`, and the tables that compare the modes in which they were asked."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reports import table

CONFIDENCE = 1.96
"""standard errors on each side: 95 % of a normal distribution"""


class Reply(NamedTuple):
    task: str
    mode: str
    prompt: str
    text: str
    calls: list[dict[str, Any]]
    finish_reason: str
    tokens: int
    seconds: float
    is_read: bool
    """whether a value of the wanted form was found in it"""
    shares: dict[str, float]
    """what is right of each field of the answer"""
    overruled: int | None = None
    """tokens in whose place the model, without the constraint, would have written another; None if unknown"""
    lost: float | None = None
    """log-probability, in nats, by which the model preferred those others"""
    error: str = ""

    @property
    def score(self) -> float:
        return statistics.fmean(self.shares.values())


class Row(NamedTuple):
    """The replies of one server in one mode to one task's cases."""

    name: str
    replies: dict[str, Reply]
    """by prompt"""


class Difference(NamedTuple):
    """The mean of a paired difference, and half of its 95 % interval (normal)."""

    mean: float
    margin: float
    pairs: int

    @property
    def sign(self) -> int:
        """-1 or 1 if the interval excludes zero."""
        return (self.mean > self.margin) - (self.mean < -self.margin)


def paired_difference(values: Sequence[float], reference: Sequence[float]) -> Difference:
    differences = [value - other for value, other in zip(values, reference, strict=True)]
    spread = statistics.stdev(differences) if len(differences) > 1 else 0.0
    return Difference(
        statistics.fmean(differences), CONFIDENCE * spread / math.sqrt(len(differences)), len(differences)
    )


def between(row: Row, reference: Row, field: str | None = None) -> Difference | None:
    """The row's score, or one field's, minus the reference's, over the prompts that both have."""
    pairs = [
        (_figure(reply, field), _figure(reference.replies[prompt], field))
        for prompt, reply in row.replies.items()
        if prompt in reference.replies and (field is None or field in reply.shares)
    ]
    if not pairs or row is reference:
        return None
    mine, other = zip(*pairs, strict=True)
    return paired_difference(mine, other)


def _figure(reply: Reply, field: str | None) -> float:
    return reply.score if field is None else reply.shares[field]


def rows_by_task(files: Mapping[str, Iterable[Reply]]) -> dict[str, list[Row]]:
    """The rows of each task. With several servers a row's name begins with the server's."""
    found: dict[str, dict[str, Row]] = {}
    for label, replies in files.items():
        for reply in replies:
            if reply.error:
                continue
            name = f"{label}: {reply.mode}" if len(files) > 1 else reply.mode
            rows = found.setdefault(reply.task, {})
            rows.setdefault(name, Row(name, {})).replies[reply.prompt] = reply
    return {task: list(rows.values()) for task, rows in found.items()}


def report(files: Mapping[str, Iterable[Reply]], reference: str) -> str:
    """An overview of all tasks, then a table for each, with differences from the row named `reference`."""
    tasks = rows_by_task(files)
    sections = [overview(tasks, reference)]
    sections += [f"### {task}\n\n{task_table(rows, reference)}" for task, rows in tasks.items()]
    return "\n\n".join(sections)


def overview(tasks: Mapping[str, Sequence[Row]], reference: str) -> str:
    """Scores in percent; ▼ and ▲ mark those whose paired difference from the reference excludes zero."""
    names = list(dict.fromkeys(row.name for rows in tasks.values() for row in rows))
    cells = []
    for name in names:
        line = [name]
        for rows in tasks.values():
            row, base = (
                next((row for row in rows if row.name == wanted), None) for wanted in (name, reference)
            )
            difference = between(row, base) if row and base else None
            mark = {-1: " ▼", 1: " ▲", 0: ""}[difference.sign if difference else 0]
            line.append(f"{_percent(reply.score for reply in row.replies.values())}{mark}" if row else "–")
        cells.append(line)
    return table(["", *tasks], cells)


def task_table(rows: Sequence[Row], reference: str) -> str:
    base = next((row for row in rows if row.name == reference), rows[0])
    fields = list(
        dict.fromkeys(field for row in rows for reply in row.replies.values() for field in reply.shares)
    )
    head = ["", "score", *fields, "all right", "unread", "cut", "overruled", "nats lost", "tokens", "seconds"]
    return table(head, [[row.name, *_cells(row, base, fields)] for row in rows])


def _cells(row: Row, base: Row, fields: Sequence[str]) -> Iterable[str]:
    replies = list(row.replies.values())
    yield _with_difference(row, base, None)
    for field in fields:
        yield _with_difference(row, base, field)
    yield _percent(float(reply.score == 1) for reply in replies)
    yield _percent(float(not reply.is_read) for reply in replies)
    yield _percent(float(reply.finish_reason == "length") for reply in replies)
    yield _mean(reply.overruled for reply in replies)
    yield _mean(reply.lost for reply in replies)
    yield _mean(reply.tokens for reply in replies)
    yield _mean(reply.seconds for reply in replies)


def _with_difference(row: Row, base: Row, field: str | None) -> str:
    figures = [_figure(reply, field) for reply in row.replies.values() if field in (None, *reply.shares)]
    difference = between(row, base, field)
    if not figures:
        return "–"
    if difference is None:
        return _percent(figures)
    shown = f"{_percent(figures)} ({100 * difference.mean:+.1f} ± {100 * difference.margin:.1f})"
    return f"**{shown}**" if difference.sign < 0 else shown


def _mean(figures: Iterable[float | None]) -> str:
    known = [figure for figure in figures if figure is not None]
    return f"{statistics.fmean(known):.3g}" if known else "–"


def _percent(shares: Iterable[float]) -> str:
    return f"{100 * statistics.fmean(shares):.1f}"


def save(path: Path, label: str, about: Mapping[str, Any], replies: Iterable[Reply]) -> None:
    content = {"label": label, **about, "replies": [reply._asdict() for reply in replies]}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")


def load(paths: Iterable[Path]) -> dict[str, list[Reply]]:
    """The replies of each label; files of one label are joined."""
    found: dict[str, list[Reply]] = {}
    for path in paths:
        content = json.loads(path.read_text(encoding="utf-8"))
        found.setdefault(content["label"], []).extend(Reply(**reply) for reply in content["replies"])
    return found
